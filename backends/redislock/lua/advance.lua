-- Goes on where a script has stopped with "more".
-- ARGV: 1 resource
-- Reply: 1 there is still more, 0 done.
redis.call('ZREM', KEYS[1], '') -- see release.lua
if redis.call('EXISTS', KEYS[4]) == 1 then purge() end
promote()
return more and 1 or 0
