-- Renews a lease in a bucket, if it lives, and finds one that is over. Never brings a
-- dead one back.
-- KEYS: 1 leases, 2 mark, 3 mine, 4 revoked, 5 reaper, 6 and 7 see forget. ARGV: 1 lease,
-- 2 TTL in microseconds, 3 see take_turn: sweeps, 4 whether to forget (1 or 0)
-- Reply: nil when the lease is over, else {run id, term, since when that server has
-- had the bucket, time, number of holds and waiters, {revoked, grace, …}, what take_turn gives}
-- Model: lease.RENEW, force.RENEW.
local dead = over()
if dead then -- it may be this one
  redis.call('ZREM', KEYS[1], '') -- see release.lua
  local expiry = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '0')
  if expiry <= now then
    if expiry > 0 then redis.call('ZADD', KEYS[1], 'XX', 0, ARGV[1]) end
    return false
  end
end
local function renew(call)
  return call('ZADD', KEYS[1], 'XX', 'CH', string.format('%.0f', now + ARGV[2]), ARGV[1])
end
local renewed = renew(redis.pcall)
if type(renewed) == 'table' then -- the memory is full
  redis.call('ZREM', KEYS[1], '')
  renewed = renew(redis.call)
end
if renewed == 0 and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return false end
if ARGV[4] == '1' then forget(KEYS[6], KEYS[7], 64) end
local run, term, since = marked()
return {run, term, since, nowstr, redis.call('ZCARD', KEYS[3]),
  redis.call('ZRANGE', KEYS[4], 0, 63, 'WITHSCORES'), take_turn(dead, KEYS[5], ARGV[3])}
