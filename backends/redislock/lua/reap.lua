-- Clears away one hold or waiter of a dead lease (whose "mine" is KEYS[3]).
-- ARGV: 1 channel prefix, 2 lease, 3 id, 4 "resource NUL id"
-- Reply: 1, or 0 where the lease is not dead.
if alive(ARGV[2]) then return 0 end
if not let_go(ARGV[3]) then give_up(ARGV[3]) end
redis.call('ZREM', KEYS[3], ARGV[4])
return 1
