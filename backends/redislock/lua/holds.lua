-- Whether a hold is one, and not a waiter.
-- KEYS: 1 lock. ARGV: 1 id
-- Reply: 1 or 0
return redis.call('HEXISTS', KEYS[1], 'h' .. ARGV[1])
