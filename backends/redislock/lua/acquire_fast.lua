-- Acquire on a resource that nobody holds, waits for, or lately gave up: the
-- common case, kept free of everything else.
-- ARGV: 1 channel prefix, 2 lease, 3 id, 4 mode, 5 who, 6 try (1 or 0), 7 "resource NUL id"
-- Reply: the fence; or a table that starts with LOST, GONE, HELD or WAIT.
do
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local expiry = redis.call('ZSCORE', KEYS[1], ARGV[2])
  if not expiry or tonumber(expiry) <= now then return {'LOST'} end
  if redis.call('EXISTS', KEYS[4], KEYS[5], KEYS[7]) == 0 then
    local since = string.format('%.0f', now)
    local fence = since
    local last = redis.call('SET', KEYS[2], fence, 'GET')
    if last and tonumber(last) >= now then -- the clock was set back
      fence = string.format('%.0f', last + 1)
      redis.call('SET', KEYS[2], fence)
    end
    redis.call('HSET', KEYS[4], 'm', ARGV[4], 'h' .. ARGV[3],
      ARGV[4] .. ' ' .. fence .. ' ' .. since .. ' ' .. ARGV[2] .. ' 0 ' .. ARGV[5])
    redis.call('ZADD', KEYS[3], 0, ARGV[7])
    return fence
  end
end
