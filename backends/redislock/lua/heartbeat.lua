-- Renews a lease in a bucket, if it lives. Never brings a dead one back.
-- KEYS: 1 leases, 2 mark, 3 mine, 4 revoked. ARGV: 1 lease, 2 TTL in microseconds
-- Reply: nil when the lease is over, else {run id, term, since when that server has
-- had the bucket, time, number of holds and waiters, {revoked, grace, …}}
-- Model: lease.RENEW, force.RENEW.
redis.call('ZREM', KEYS[1], '') -- see release.lua
local expiry = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '0')
if expiry <= now then
  if expiry > 0 then redis.call('ZADD', KEYS[1], 'XX', 0, ARGV[1]) end
  return false
end
redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now + ARGV[2]), ARGV[1])
local run, term, since = marked()
return {run, term, since, nowstr, redis.call('ZCARD', KEYS[3]), redis.call('ZRANGE', KEYS[4], 0, 63, 'WITHSCORES')}
