-- Takes a hold from its holder, or a waiter out of the queue. A grace is written
-- down and published here; it counts from when the holder's sidecar acknowledges it.
-- With grace 0 the hold is gone at once, and is named until that is acknowledged.
-- ARGV: 1 resource, 2 lease of the holder, 3 id, 4 grace in
-- microseconds, 5 for how many microseconds to remember a waiter that is gone
-- Reply: 0 it is gone, -1 nobody of that id is there, else milliseconds to wait
-- before asking again; a table: the holder's lease, where it is not that of ARGV[2].
-- Model: force.FORCE, retry.FORCE.
redis.call('ZREM', KEYS[1], '') -- see release.lua
local id, grace = ARGV[3], tonumber(ARGV[4])
local member = ARGV[1] .. '\0' .. id
local record = redis.call('HGET', KEYS[4], 'h' .. id)
if not record then
  local waiter = redis.call('HGET', KEYS[6], id)
  if not waiter then return -1 end
  local _, _, _, lease = parse(waiter)
  if lease ~= ARGV[2] then return {lease} end
  local live = ends(lease)
  remember_gone(id, tonumber(ARGV[5]))
  redis.call('ZREM', KEYS[3], member)
  give_up(id)
  if not live then return -1 end
  publish(lease, 'x ' .. id)
  return 0
end
local mode, fence, since, lease, over, asked, who = parse(record)
if lease ~= ARGV[2] then return {lease} end
over = tonumber(over)
local expiry = ends(lease)
if not expiry then -- nobody is there to be told
  let_go(id)
  redis.call('ZREM', KEYS[3], member)
  redis.call('ZREM', KEYS[10], member)
  return least(asked, who) > now and 0 or -1
end
if over > 0 and over <= now then -- the holder's release finds it in its list
  let_go(id)
  return 0
end
if grace == 0 then
  redis.call('ZREM', KEYS[3], member)
  let_go(id)
  revoke(lease, expiry, 0)
  publish(lease, 'r ' .. id .. ' 0 ' .. ARGV[1])
  return 0
end
if asked == '-' or grace < tonumber(asked) then
  if redis.call('HEXISTS', KEYS[4], 'f') == 0 then redis.call('HSET', KEYS[4], 'f', '1') end
  redis.call('HSET', KEYS[4], 'h' .. id, mode .. ' ' .. fence .. ' ' .. since .. ' ' .. lease ..
    ' ' .. string.format('%.0f', over) .. ' ' .. ARGV[4] .. ' ' .. who)
  revoke(lease, expiry, ARGV[4])
  publish(lease, 'r ' .. id .. ' ' .. ARGV[4] .. ' ' .. ARGV[1])
end
if over > 0 and over < expiry then expiry = over end
return math.max(1, math.ceil((expiry - now) / 1000))
