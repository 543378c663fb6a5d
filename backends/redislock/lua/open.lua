-- Makes a lease known in a bucket, or only looks which server has it.
-- KEYS: 1 leases, 2 mine. ARGV: 1 lease or empty, 2 time to live in microseconds, 3 the mark that the sidecar
-- knows: since when that server has had the bucket, or empty; 4 for how many microseconds it has known it,
-- 5 1: another server has had the bucket meanwhile, so the mark is replaced; or absent
-- Reply: {run id, term, since when that server has had the bucket, for how many microseconds
-- at least, 1; 0: the lease was known and is over, and what hung on it is not cleared away yet; for how many
-- microseconds by the server's clock}
redis.call('ZREM', KEYS[1], '') -- see release.lua
local run, term, since = marked(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(0', 'LIMIT', 0, 1)[1])
local mark = '!' .. run .. ' ' .. term .. ' ' .. since
local age = -1 - redis.call('ZSCORE', KEYS[1], mark)
if ARGV[3] == run .. ' ' .. since then
  if ARGV[5] then
    redis.call('ZREM', KEYS[1], mark)
    since = string.format('%.0f', math.max(now, since + 1))
    mark = '!' .. run .. ' ' .. term .. ' ' .. since
    age = 0
    redis.call('ZADD', KEYS[1], -1, mark)
  elseif tonumber(ARGV[4]) > age then
    age = tonumber(ARGV[4])
    redis.call('ZADD', KEYS[1], string.format('%.0f', -1 - age), mark)
  end
end
age = string.format('%.0f', age)
local clock = string.format('%.0f', now - since)
if ARGV[1] ~= '' then
  local expiry = redis.call('ZSCORE', KEYS[1], ARGV[1])
  if expiry and tonumber(expiry) <= now and redis.call('ZCARD', KEYS[2]) > 0 then
    return {run, term, since, age, 0, clock}
  end
  local ending = string.format('%.0f', now + ARGV[2])
  redis.call('ZADD', KEYS[1], ending, ARGV[1])
  redis.call('ZADD', KEYS[1], 'XX', ending, ARGV[1] .. '!')
end
return {run, term, since, age, 1, clock}
