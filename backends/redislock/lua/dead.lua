-- Finds leases that are over, and marks them as dead for good: what hangs on them is
-- going to be cleared away.
-- KEYS: 1 leases, 2 reaper: who clears all buckets. ARGV: 1 lease of the caller, 2 for
-- how many milliseconds to take the turn; 0 asks for no turn
-- Reply: some of the leases, or nil where it is the turn of another sidecar.
redis.call('ZREM', KEYS[1], '') -- see release.lua
if ARGV[2] ~= '0' then
  local whose = redis.call('GET', KEYS[2])
  if whose and whose ~= ARGV[1] then return false end
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
end
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
local dead = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 64)
for _, lease in ipairs(dead) do redis.call('ZADD', KEYS[1], 'XX', 0, lease) end
return dead
