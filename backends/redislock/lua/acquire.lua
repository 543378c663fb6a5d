local lease, id, mode, who, member = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[7]
redis.call('ZREMRANGEBYSCORE', KEYS[7], '-inf', nowstr)
if redis.call('ZSCORE', KEYS[7], id) then return {'GONE'} end

local function own()
  local record = redis.call('HGET', KEYS[4], 'h' .. id)
  if not record then return nil end
  local _, fence = parse(record)
  return fence
end

local function take()
  redis.call('ZADD', KEYS[3], 0, member)
  return grant(id, mode, lease, who)
end

local fence = own() -- a retry finds its own grant
if fence then return fence end
local queued = redis.call('ZSCORE', KEYS[5], id)
if not queued and redis.call('EXISTS', KEYS[5]) == 0 and grantable(mode) then return take() end

-- It is in somebody's way or somebody is in its way: look whether they live.
local soonest = purge()
promote()
fence = own()
if fence then return fence end
if not queued then
  if redis.call('EXISTS', KEYS[5]) == 0 and grantable(mode) then return take() end
  if ARGV[6] == '1' then return holders({'HELD', nowstr}) end
  redis.call('ZADD', KEYS[5], next_number(), id)
  redis.call('HSET', KEYS[6], id, mode .. ' 0 ' .. nowstr .. ' ' .. lease .. ' 0 ' .. who)
  redis.call('ZADD', KEYS[3], 0, member)
end
local wait = 0
if soonest then wait = math.ceil((soonest - now) / 1000) end
return {'WAIT', wait}
