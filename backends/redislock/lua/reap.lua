-- Clears away one hold or waiter of a dead lease, or, of the lease 0, a hold whose own time is over.
-- ARGV: 1 resource, 2 lease, 3 id
-- Reply: 2 done and there is more to hand on, 1 done, 0 where the lease is not dead.
local member = ARGV[1] .. '\0' .. ARGV[3]
if ARGV[2] == '0' then
  local own = redis.call('ZSCORE', KEYS[10], member)
  if own and tonumber(own) > now then return 1 end -- it was moved meanwhile
  redis.call('ZREM', KEYS[9], member)
  redis.call('ZREM', KEYS[10], member)
  let_go(ARGV[3])
  return more and 2 or 1
end
if ends(ARGV[2]) then return 0 end
redis.call('ZREM', KEYS[3], member)
if not keep(ARGV[3]) and not let_go(ARGV[3]) then give_up(ARGV[3]) end
return more and 2 or 1
