-- Ends a hold or a wait and hands the resource on.
-- ARGV: 1 resource, 2 lease, 3 id, 4 for how many microseconds to remember that the id
-- is gone; absent: it need not be
-- Reply: 1 done, 2 done and there is more to hand on, 0 nothing there, -1 the lease
-- is over; or a table CANCELLED, position, more (1 or 0), time, holders… when it was a waiter.
-- Model: retry.WITHDRAW, force.RELEASE.
local id = ARGV[3]
-- This comes first: after a write that takes no memory Redis lets the others
-- pass although its memory is full.
local mine = redis.call('ZREM', KEYS[3], ARGV[1] .. '\0' .. id)
redis.call('ZREM', KEYS[8], ARGV[1] .. '\0' .. id)
local live = ends(ARGV[2])
if ARGV[4] then remember_gone(id, tonumber(ARGV[4])) end
if mine == 0 then return live and 0 or -1 end -- not of this lease
if keep(id) then return live and 1 or -1 end
if let_go(id) then return live and (more and 2 or 1) or -1 end
local rank = redis.call('ZRANK', KEYS[5], id)
if rank then
  give_up(id)
  return holders({'CANCELLED', rank + 1, more and 1 or 0, nowstr})
end
return live and 0 or -1
