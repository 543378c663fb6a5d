-- Ends a lease in a bucket once nothing hangs on it.
-- KEYS: 1 leases, 2 mine, 3 revoked. ARGV: 1 lease, 2 reap: only if it is dead for good
-- Reply: how many holds and waiters still hang on it; 0 when it is gone, or lives again.
if ARGV[2] == 'reap' and redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= '0' then return 0 end
local left = redis.call('ZCARD', KEYS[2])
if left == 0 then
  redis.call('ZREM', KEYS[1], ARGV[1], ARGV[1] .. '!')
  redis.call('DEL', KEYS[3])
end
return left
