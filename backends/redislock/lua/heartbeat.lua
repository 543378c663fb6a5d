-- Renews a lease in a bucket, if it lives. Never brings a dead one back.
-- KEYS: 1 leases, 2 reaper. ARGV: 1 lease, 2 TTL in microseconds
-- Reply: nil when the lease is over, else the dead leases that the caller may
-- clear away; only one sidecar at a time is asked to.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local expiry = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not expiry or tonumber(expiry) <= now then return false end
redis.call('ZADD', KEYS[1], 'XX', now + ARGV[2], ARGV[1])
local dead = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, 4)
if #dead > 0 and not redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', 5000) then return {} end
return dead
