-- Release by the only holder while nobody waits: the common case, kept free of
-- everything else. The arguments are those of release.lua. Two fields are the mode
-- and one holder; the list of the lease says whose it is.
if not ARGV[4] and redis.call('EXISTS', KEYS[5]) == 0 and redis.call('HLEN', KEYS[4]) == 2
  and redis.call('ZREM', KEYS[3], ARGV[1] .. '\0' .. ARGV[3]) == 1 then
  if redis.call('HDEL', KEYS[4], 'm', 'h' .. ARGV[3]) == 2 then
    return 1
  end
  -- A forced release has ended it, and another one holds the lock.
  redis.call('HSET', KEYS[4], 'm', string.sub(redis.call('HVALS', KEYS[4])[1], 1, 1))
end
