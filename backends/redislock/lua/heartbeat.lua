-- Renews a lease in a bucket, if it lives, and finds one that is over. Never brings a
-- dead one back.
-- KEYS: 1 leases, 2 mine, 3 revoked, 4 reaper, 5 and 6 see forget. ARGV: 1 lease, 2 TTL in
-- microseconds, 3 see take_turn: sweeps, 4 whether to forget (1 or 0)
-- Reply: nil when the lease is over, else {run id, term, since when that server has
-- had the bucket, number of holds and waiters, {revoked, grace, …}, what take_turn gives}
-- Every sidecar sends it all the time, so it calls as little as it can: what can stand
-- in leases does.
-- Model: lease.RENEW, force.RENEW.
local dead, mark = over()
if dead then -- it may be this one
  redis.call('ZREM', KEYS[1], '') -- see release.lua
  local expiry = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '0')
  if expiry <= now then
    if expiry > 0 then redis.call('ZADD', KEYS[1], 'XX', 0, ARGV[1]) end
    return false
  end
end
local flag = ARGV[1] .. '!'
local ending = string.format('%.0f', now + ARGV[2])
local function renew(call)
  return call('ZADD', KEYS[1], 'XX', 'CH', ending, ARGV[1], ending, flag)
end
local renewed = renew(redis.pcall)
if type(renewed) == 'table' then -- the memory is full
  redis.call('ZREM', KEYS[1], '')
  renewed = renew(redis.call)
end
local revoked = {}
if renewed ~= 1 then -- there is a flag, or nothing has changed in this microsecond
  if renewed == 0 and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return false end
  revoked = redis.call('ZRANGE', KEYS[3], 0, 63, 'WITHSCORES')
  if #revoked == 0 then redis.call('ZREM', KEYS[1], flag) end
end
if ARGV[4] == '1' then forget(KEYS[5], KEYS[6], 256) end
local run, term, since = marked(mark)
return {run, term, since, redis.call('ZCARD', KEYS[2]), revoked, take_turn(dead, KEYS[4], ARGV[3])}
