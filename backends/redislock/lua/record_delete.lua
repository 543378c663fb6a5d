-- Takes a record away.
-- ARGV: 1 name with NUL, 2 version that must be there
-- Reply: 1 it is gone; 0 there is another.
local is = version()
if is ~= '' and is ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
