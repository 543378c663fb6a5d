-- Takes a hold from its holder, or a waiter out of the queue.
-- ARGV: 1 channel prefix, 2 id, 3 grace in microseconds, 4 resource
-- Reply: 0 it is gone, -1 nobody of that id is there, else milliseconds to wait
-- before asking again.
local id, grace = ARGV[2], tonumber(ARGV[3])
local record = redis.call('HGET', KEYS[4], 'h' .. id)
if not record then
  local waiter = redis.call('HGET', KEYS[6], id)
  if not waiter then return -1 end
  local _, _, _, lease = parse(waiter)
  local live = alive(lease)
  remember_gone(id)
  give_up(id)
  if not live then return -1 end
  redis.call('PUBLISH', ARGV[1] .. lease, 'x ' .. id)
  return 0
end
local mode, fence, since, lease, revoked, who = parse(record)
revoked = tonumber(revoked)
if not alive(lease) then
  let_go(id)
  return -1
end
if revoked == 0 then
  redis.call('PUBLISH', ARGV[1] .. lease, 'r ' .. id .. ' ' .. math.floor(grace / 1000) .. ' ' .. ARGV[4])
elseif revoked < now + grace then
  grace = revoked - now
end
if grace <= 0 then
  let_go(id)
  return 0
end
redis.call('HSET', KEYS[4], 'h' .. id, mode .. ' ' .. fence .. ' ' .. since .. ' ' .. lease ..
  ' ' .. string.format('%.0f', now + grace) .. ' ' .. who)
return math.ceil(grace / 1000)
