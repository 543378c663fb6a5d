-- Turns an exclusive hold into a shared one; readers at the head of the queue join it.
-- ARGV: 1 channel prefix, 2 lease, 3 id
-- Reply: 1 done, 0 nothing there, -1 the lease is over.
if not alive(ARGV[2]) then return -1 end
local field = 'h' .. ARGV[3]
local record = redis.call('HGET', KEYS[4], field)
if not record then return 0 end
local mode, fence, since, lease, revoked, who = parse(record)
if lease ~= ARGV[2] then return 0 end
if mode == 'X' then
  redis.call('HSET', KEYS[4], 'm', 'S', field,
    'S ' .. fence .. ' ' .. since .. ' ' .. lease .. ' ' .. revoked .. ' ' .. who)
  promote()
end
return 1
