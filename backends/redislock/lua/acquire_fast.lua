-- Acquire on a resource that nobody holds, waits for, or recently gave up: the
-- common case, kept free of everything else.
-- ARGV: 1 resource, 2 lease, 3 id, 4 mode (behind it, where the hold is there for a
-- time of its own: m and how many microseconds), 5 who, 6 try (1; absent or 0: no; 3 and 2 are the same, and what is
-- granted already gets another fence: since then another server may have given larger ones), 7 the term of the
-- server that the lease trusts, see server.lua; absent: a process that
-- is alone has only one. No word that a plain pair can do without: each costs Redis what it costs to look up a key
-- Reply: the fence; or a table that starts with LOST, GONE, HELD, WAIT (when to ask again
-- follows, and 1 where not all were told that it waits), LIMIT (the holders have another
-- number of permits), MORE (ask again at once), GRANTED (the fence follows; there is more to hand on) or STRANGER
-- (the process was a replica meanwhile and may know less; nothing was done).
-- Model: lease.ASK, retry.ASK.
do
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local expiry = redis.call('ZSCORE', KEYS[1], ARGV[2])
  if not expiry or tonumber(expiry) <= now then
    redis.call('ZREM', KEYS[1], '') -- a replica may not say that: it only lags behind, or is another server's
    return {'LOST'}
  end
  if redis.call('EXISTS', KEYS[4], KEYS[5], KEYS[7]) == 0 and #ARGV[4] == 1 then -- no permit, no time of its own
    local since = string.format('%.0f', now)
    local fence = since
    local last = redis.call('SET', KEYS[2], fence, 'GET')
    if last and tonumber(last) >= now then -- the clock was set back
      fence = string.format('%.0f', last + 1)
      redis.call('SET', KEYS[2], fence)
    end
    redis.call('HSET', KEYS[4], 'm', ARGV[4], 'h' .. ARGV[3],
      ARGV[4] .. ' ' .. fence .. ' ' .. since .. ' ' .. ARGV[2] .. ' 0 - ' .. ARGV[5])
    redis.call('ZADD', KEYS[3], 0, ARGV[1] .. '\0' .. ARGV[3])
    return fence
  end
end
