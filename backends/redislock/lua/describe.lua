-- Notes who has a hold now, for people.
-- ARGV: 1 channel prefix, 2 resource, 3 lease, 4 id, 5 who
-- Reply: 1 done, 0 nothing there, -1 the lease is over.
if not ends(ARGV[3]) then return -1 end
local field = 'h' .. ARGV[4]
local record = redis.call('HGET', KEYS[4], field)
if not record then return 0 end
local mode, fence, since, lease, over, asked = parse(record)
if lease ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[4], field,
  mode .. ' ' .. fence .. ' ' .. since .. ' ' .. lease .. ' ' .. over .. ' ' .. asked .. ' ' .. ARGV[5])
return 1
