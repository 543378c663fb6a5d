-- Writes a record over another one, or where there is none.
-- ARGV: 1 name with NUL, 2 version that must be there, or empty, 3 version, 4 value,
-- 5 milliseconds to keep it
-- Reply: 1 done, or done before; 0 there is another.
local is = version()
if is == ARGV[3] then return 1 end
if is ~= ARGV[2] then return 0 end
-- What became of a hold is noted though the memory is full, see release.lua. A record of
-- another name has to wait.
if is ~= '' then redis.call('ZREM', KEYS[2], '') end
redis.call('SET', KEYS[1], ARGV[3] .. ' ' .. nowstr .. ' ' .. ARGV[4], 'PX', ARGV[5])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('ZADD', KEYS[3], string.format('%.0f', now + ARGV[5] * 1000), ARGV[1])
forget(KEYS[2], KEYS[3], 8)
return 1
