-- Ends a lease in a bucket once nothing hangs on it.
-- KEYS: 1 leases, 2 mine, 3 revoked. ARGV: 1 lease
-- Reply: how many holds and waiters still hang on it; 0 when it is gone.
local left = redis.call('ZCARD', KEYS[2])
if left == 0 then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('DEL', KEYS[3])
end
return left
