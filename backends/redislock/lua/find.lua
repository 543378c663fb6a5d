-- Finds a lease that is over, where no heartbeat does.
-- KEYS: 1 leases, 2 reaper. ARGV: 1 lease of the caller, 2 see take_turn: sweeps
-- Reply: see take_turn
return take_turn(over(), KEYS[2], ARGV[2])
