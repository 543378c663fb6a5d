-- A heartbeat with one key, for as long as the keys of its slot move to another
-- node: a script with two of them would not run while one is here and one there.
-- KEYS: 1 leases. ARGV: 1 lease, 2 TTL in microseconds
-- Reply: 1, or nil when the lease is over.
redis.call('ZREM', KEYS[1], '') -- see release.lua
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local expiry = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '0')
if expiry <= now then
  if expiry > 0 then redis.call('ZADD', KEYS[1], 'XX', 0, ARGV[1]) end
  return false
end
local ending = string.format('%.0f', now + ARGV[2])
redis.call('ZADD', KEYS[1], 'XX', ending, ARGV[1], ending, ARGV[1] .. '!')
return 1
