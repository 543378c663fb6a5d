-- Turns an exclusive hold into a shared one; readers at the head of the queue join it.
-- ARGV: 1 channel prefix, 2 resource, 3 lease, 4 id
-- Reply: 1 done, 2 done and there is more to hand on, 0 nothing there, -1 the lease is over.
if not ends(ARGV[3]) then return -1 end
local field = 'h' .. ARGV[4]
local record = redis.call('HGET', KEYS[4], field)
if not record then return 0 end
local mode, fence, since, lease, over, asked, who = parse(record)
if lease ~= ARGV[3] or (over ~= '0' and tonumber(over) <= now) then return 0 end
if mode == 'X' then
  redis.call('HSET', KEYS[4], 'm', 'S', field,
    'S ' .. fence .. ' ' .. since .. ' ' .. lease .. ' ' .. over .. ' ' .. asked .. ' ' .. who)
  promote()
end
return more and 2 or 1
