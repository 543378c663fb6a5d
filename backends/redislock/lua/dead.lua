-- What the scripts share that find leases that are over. KEYS[1] are the leases.

-- Gives a lease that is over, if there is one, and the mark of the bucket.
local function over()
  local first = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', nowstr, 'LIMIT', 0, 2)
  if first[1] and string.sub(first[1], 1, 1) == '!' then return first[2], first[1] end
  return first[1]
end

-- Has the sidecar of ARGV[1] clear dead leases away, for a moment nobody else. reaper is
-- the key that says whose turn it is. A dead lease is marked as dead for good: what hangs
-- on it is going to be cleared away. sweeps ('1' or '0') takes the turn though none is dead.
-- Gives the lease, or '' where none is dead; nil where it is the turn of another. It
-- raises no error: a heartbeat is good without it.
-- Model: lease.EXPIRE.
local function take_turn(dead, reaper, sweeps)
  if not dead and sweeps == '0' then return '' end
  redis.pcall('ZREM', KEYS[1], '') -- see release.lua
  local whose = redis.pcall('GET', reaper)
  if whose and whose ~= ARGV[1] then return false end
  if not redis.pcall('SET', reaper, ARGV[1], 'PX', 3000).ok then return false end
  if dead then redis.pcall('ZADD', KEYS[1], 'XX', 0, dead) end
  return dead or ''
end
