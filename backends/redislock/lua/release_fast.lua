-- Release of an exclusive hold that nobody waits for, on a lease that is known to
-- live: the common case, kept free of everything else. The arguments are those of
-- release.lua.
if ARGV[6] == '1' and redis.call('EXISTS', KEYS[5]) == 0 and redis.call('HDEL', KEYS[4], 'h' .. ARGV[3]) == 1 then
  redis.call('DEL', KEYS[4]) -- an exclusive holder is alone
  redis.call('ZREM', KEYS[3], ARGV[4])
  return 1
end
