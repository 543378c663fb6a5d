-- Notes who has a hold now, for people.
-- ARGV: 1 resource, 2 lease, 3 id, 4 who
-- Reply: 1 done, 0 nothing there, -1 the lease is over.
if not ends(ARGV[2]) then
  redis.call('ZREM', KEYS[1], '') -- see acquire_fast.lua
  return -1
end
local field = 'h' .. ARGV[3]
local mode, fence, since, lease, over, asked = parse(redis.call('HGET', KEYS[4], field) or '')
if lease ~= ARGV[2] then
  redis.call('ZREM', KEYS[1], '')
  return 0
end
redis.call('HSET', KEYS[4], field,
  mode .. ' ' .. fence .. ' ' .. since .. ' ' .. lease .. ' ' .. over .. ' ' .. asked .. ' ' .. ARGV[4])
return 1
