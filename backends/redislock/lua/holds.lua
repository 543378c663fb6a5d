-- Whether a hold is one, and not a waiter.
-- KEYS: 1 lock. ARGV: 1 id
-- Reply: its fence, or 0
local record = redis.call('HGET', KEYS[1], 'h' .. ARGV[1])
return record and string.match(record, '^%S+ (%S+)') or 0
