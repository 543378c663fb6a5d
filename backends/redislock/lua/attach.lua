-- Attaches a detached hold to a lease, under another id. A lease that has it is told that it has it no more.
-- KEYS[11] and [12] are mine and revoked of the lease that has it.
-- ARGV: 1 resource, 2 lease, 3 id, 4 mode, 5 who, 6 key, a colon and the lease that has it,
-- 7 see term.lua
-- Reply: {ATTACHED, fence, for how many microseconds its time is not over}, {NOHANDLE}, {HOLDER, lease} where that
-- is another one than in ARGV[6], {GONE}, {LOST}, {STRANGER}.
-- Model: kept.ATTACH.
redis.call('ZREM', KEYS[1], '') -- see release.lua
local lease, id, mode, who = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local key, from = string.match(ARGV[6], '^(%x+):(%x*)$')
local gone = redis.call('ZSCORE', KEYS[7], id)
if gone and tonumber(gone) > now then return {'GONE'} end
if not ends(lease) then return {'LOST'} end
local member = ARGV[1] .. '\0' .. id
local own = redis.call('HGET', KEYS[4], 'h' .. id)
if own then -- asked again
  local _, fence, _, holder, _, asked, said = parse(own)
  if holder ~= lease then return {'GONE'} end
  local left = least(asked, said) - now
  if left <= 0 and asked == '-' then return {'NOHANDLE'} end -- it stays: this may be a copy that arrives late
  return {'ATTACHED', fence, string.format('%.0f', math.max(left, 1))}
end
if redis.call('ZSCORE', KEYS[8], member) then return {'GONE'} end -- asked again, and it was taken away meanwhile
local was = redis.call('HGET', KEYS[4], 'd' .. key)
local record = was and redis.call('HGET', KEYS[4], 'h' .. was)
if not record then return {'NOHANDLE'} end
local held, fence, _, holder, _, asked, said = parse(record)
local till = least(asked, said)
if held ~= mode or till <= now then return {'NOHANDLE'} end
if holder ~= '0' and holder ~= from then return {'HOLDER', holder} end
local old = ARGV[1] .. '\0' .. was
if holder == '0' then
  redis.call('ZREM', KEYS[9], old)
  redis.call('ZREM', KEYS[10], old)
else
  redis.call('ZREM', KEYS[11], old)
  local expiry = ends(holder)
  if expiry then taken_away(holder, expiry, KEYS[12], was) end
end
redis.call('HDEL', KEYS[4], 'h' .. was)
redis.call('HSET', KEYS[4], 'd' .. key, id, 'h' .. id, held .. ' ' .. fence .. ' ' .. nowstr .. ' ' .. lease .. ' 0 - ' .. who ..
  '\0d' .. key .. '\0m' .. string.format('%.0f', till))
redis.call('ZADD', KEYS[3], 0, member)
return {'ATTACHED', fence, string.format('%.0f', till - now)}
