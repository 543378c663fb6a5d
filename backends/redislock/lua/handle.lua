-- Moves the end of a detached hold, or ends it. It is moved from the end that the caller has read: a copy of the
-- request that comes after the next one changes nothing.
-- ARGV: 1 resource, 2 the lease that has it; 0: none, 3 its end, where that is to be moved, 4 key,
-- 5 for how many microseconds from now; 0: it ends
-- Reply: {DONE, id, mode, fence, more (1 or 0)}, {NOHANDLE}, {HOLDER, lease, end} where one of both is not as in ARGV.
redis.call('ZREM', KEYS[1], '') -- see release.lua
local key, time = ARGV[4], tonumber(ARGV[5])
local id = redis.call('HGET', KEYS[4], 'd' .. key)
local record = id and redis.call('HGET', KEYS[4], 'h' .. id)
if not record then return {'NOHANDLE'} end
local mode, fence, since, lease, over, asked, who = parse(record)
local till = least(asked, who)
if till <= now then return {'NOHANDLE'} end
local ends_at = string.format('%.0f', till)
if lease ~= ARGV[2] or (time > 0 and ends_at ~= ARGV[3]) then return {'HOLDER', lease, ends_at} end
local member = ARGV[1] .. '\0' .. id
if time == 0 then
  redis.call('ZREM', KEYS[3], member) -- where it is of no lease, that is KEYS[9]
  redis.call('ZREM', KEYS[10], member)
  let_go(id)
  local expiry = lease ~= '0' and ends(lease)
  if expiry then taken_away(lease, expiry, KEYS[8], id) end
else
  till = now + time
  who = string.gsub(who, '%zm%d+$', '') .. '\0m' .. string.format('%.0f', till)
  redis.call('HSET', KEYS[4], 'h' .. id, mode .. ' ' .. fence .. ' ' .. since .. ' ' .. lease .. ' ' .. over .. ' ' .. asked .. ' ' .. who)
  if lease == '0' then keep_until(member, till) end
end
return {'DONE', id, mode, fence, more and 1 or 0}
