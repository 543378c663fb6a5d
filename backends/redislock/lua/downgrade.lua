-- Turns an exclusive hold into a shared one; readers at the head of the queue join it.
-- ARGV: 1 resource, 2 lease, 3 id
-- Reply: 1 done, 2 done and there is more to hand on, 0 nothing there, -1 the lease is over.
if not ends(ARGV[2]) then
  redis.call('ZREM', KEYS[1], '') -- see acquire_fast.lua
  return -1
end
local field = 'h' .. ARGV[3]
local mode, fence, since, lease, over, asked, who = parse(redis.call('HGET', KEYS[4], field) or '')
if lease ~= ARGV[2] or (over ~= '0' and tonumber(over) <= now) then
  redis.call('ZREM', KEYS[1], '')
  return 0
end
if mode == 'X' then
  redis.call('HSET', KEYS[4], 'm', 'S', field,
    'S ' .. fence .. ' ' .. since .. ' ' .. lease .. ' ' .. over .. ' ' .. asked .. ' ' .. who)
  promote()
end
return more and 2 or 1
