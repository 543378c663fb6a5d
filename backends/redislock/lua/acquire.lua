local lease, id, mode, who = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local try, renews = ARGV[6] == '1' or ARGV[6] == '3', ARGV[6] == '2' or ARGV[6] == '3'
local time = string.match(mode, 'm(%d+)$')
if time then mode, who = string.match(mode, '^%u%d*'), who .. '\0m' .. time end
local member = ARGV[1] .. '\0' .. id
local old = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', nowstr, 'LIMIT', 0, 8)
if #old > 0 then redis.call('ZREM', KEYS[7], unpack(old)) end
local gone = redis.call('ZSCORE', KEYS[7], id)
if gone and tonumber(gone) > now then return {'GONE'} end

local function granted(fence)
  if more then return {'GRANTED', fence} end
  return fence
end

-- The fence of the hold, where it is there already; "over" when its forced
-- release has run out; "kept" when it was released, and its own time has not.
local function own()
  local record = redis.call('HGET', KEYS[4], 'h' .. id)
  if not record then return nil end
  local held, fence, since, holder, over, asked, said = parse(record)
  if holder == '0' then return nil, false, true end
  over = tonumber(over)
  if over > 0 and over <= now then return nil, true end
  if renews then
    fence = next_number() .. (string.match(fence, '%+%d+$') or '')
    redis.call('HSET', KEYS[4], 'h' .. id, held .. ' ' .. fence .. ' ' .. since .. ' ' .. holder .. ' ' ..
      string.format('%.0f', over) .. ' ' .. asked .. ' ' .. said)
  end
  return fence
end

local function take()
  redis.call('ZADD', KEYS[3], 0, member)
  local fence = grant(id, mode, lease, who)
  write_slots()
  return granted(fence)
end

-- Tells those whom the new waiter stands behind, where they stand there for several
-- apps. It is a hint. True: of many readers some were told, and the caller tells all.
local function tell(waiter, record)
  if not record or string.sub(record, -2) ~= '\0c' then return false end
  local _, _, _, holder = parse(record)
  if holder ~= lease then publish(holder, 'c ' .. waiter) end
  return true
end
local function contend()
  local last = redis.call('ZRANGE', KEYS[5], -1, -1)[1]
  if last then
    tell(last, redis.call('HGET', KEYS[6], last))
    return false
  end
  local told = false
  local scan = redis.call('HSCAN', KEYS[4], '0', 'COUNT', 16)
  local page = scan[2]
  for i = 1, #page, 2 do
    if string.sub(page[i], 1, 1) == 'h' and tell(string.sub(page[i], 2), page[i + 1]) then told = true end
  end
  return told and scan[1] ~= '0'
end

-- Whether it asks for one of another number of permits than the holders have.
local function clashes()
  if not limit(mode) then return false end
  local held = redis.call('HGET', KEYS[4], 'm')
  return held and held ~= mode and limit(held)
end

local fence, over, kept = own() -- a retry finds its own grant
if fence then return fence end
if kept then return {'GONE'} end
if over then
  let_go(id)
  redis.call('ZREM', KEYS[3], member)
  return {'GONE'}
end
local queued = redis.call('ZSCORE', KEYS[5], id)
if not queued and redis.call('EXISTS', KEYS[5]) == 0 and grantable(mode) then return take() end

-- It is in somebody's way or somebody is in its way: look whether they live.
local crowd = false
local soonest = purge()
promote()
fence = own()
if fence then return granted(fence) end
if not queued then
  local free = not more and redis.call('EXISTS', KEYS[5]) == 0 and grantable(mode)
  if free then return take() end
  if not more and clashes() then return {'LIMIT'} end
  if try then
    if more then return {'MORE'} end
    return holders({'HELD', nowstr})
  end
  crowd = contend()
  redis.call('ZADD', KEYS[5], next_number(), id)
  redis.call('HSET', KEYS[6], id, mode .. ' 0 ' .. nowstr .. ' ' .. lease .. ' 0 - ' .. who)
  redis.call('ZADD', KEYS[3], 0, member)
end
if more then return {'MORE'} end
local wait = 0
if soonest then wait = math.ceil((soonest - now) / 1000) end
if crowd then return {'WAIT', wait, 1} end
return {'WAIT', wait}
