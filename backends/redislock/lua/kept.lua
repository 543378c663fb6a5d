-- Gives holds of no lease whose own time is over. Where there is none, the heartbeats look out for the
-- first one that will be.
-- KEYS: 1 leases, 2 kept ends. ARGV: 1 how many
-- Reply: {"resource NUL id", …}
-- Model: kept.OVER.
redis.call('ZREM', KEYS[1], '') -- see release.lua
local t = redis.call('TIME')
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', t[1] * 1000000 + t[2]), 'LIMIT', 0, ARGV[1])
if #due > 0 then return due end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if first[1] then
  redis.call('ZADD', KEYS[1], string.format('%.0f', first[2]), 'kept')
else
  redis.call('ZREM', KEYS[1], 'kept')
end
return due
