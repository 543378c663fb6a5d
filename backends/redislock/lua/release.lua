-- Ends a hold or a wait and hands the resource on.
-- ARGV: 1 channel prefix, 2 lease, 3 id, 4 "resource NUL id", 5 remember that the id is gone (1 or 0),
-- 6 it is exclusive, its lease lives, and 5 is 0 (1 or 0)
-- Reply: 1 done, 0 nothing there, -1 the lease is over; or a table
-- CANCELLED, position, time, holders… when it was a waiter.
local id = ARGV[3]
local live = alive(ARGV[2])
if ARGV[5] == '1' then remember_gone(id) end
if redis.call('ZREM', KEYS[3], ARGV[4]) == 0 then return live and 0 or -1 end -- not of this lease
if let_go(id) then return live and 1 or -1 end
local rank = redis.call('ZRANK', KEYS[5], id)
if rank then
  give_up(id)
  return holders({'CANCELLED', rank + 1, nowstr})
end
return live and 0 or -1
