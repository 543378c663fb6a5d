-- Finds a lease that is over, where no heartbeat does.
-- KEYS: 1 leases, 2 reaper, 3 and 4 see forget. ARGV: 1 lease of the caller, 2 see take_turn: sweeps
-- Reply: see take_turn
forget(KEYS[3], KEYS[4], 64)
return take_turn(over(), KEYS[2], ARGV[2])
