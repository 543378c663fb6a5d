-- Makes a lease known in a bucket.
-- KEYS: 1 leases, 2 used. ARGV: 1 lease, 2 time to live in microseconds, 3 whether an empty store may be used (1 or 0)
-- Reply: 1 open, 0 the store is empty and may have lost its memory.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if redis.call('EXISTS', KEYS[2]) == 0 then
  if ARGV[3] ~= '1' then return 0 end
  redis.call('SET', KEYS[2], 'a bucket of locks; its loss means that the store has lost its memory')
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
return 1
