-- The holder's sidecar knows that the release of a hold is forced: its grace
-- counts from now. It can end sooner than acknowledged before, never later.
-- KEYS: 1 leases, 2 lock, 3 revoked
-- ARGV: 1 lease, 2 id, 3 "resource NUL id", 4 grace in microseconds
-- Reply: 1, or -1 when the lease is over.
-- Model: force.RENEW.
redis.call('ZREM', KEYS[1], '') -- see release.lua
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local expiry = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not expiry or tonumber(expiry) <= now then return -1 end
local grace = tonumber(ARGV[4])
local pending = redis.call('ZSCORE', KEYS[3], ARGV[3])
local field = 'h' .. ARGV[2]
local record = redis.call('HGET', KEYS[2], field)
if pending and tonumber(pending) >= grace then redis.call('ZREM', KEYS[3], ARGV[3]) end
if not record then return 1 end
local head, over, rest = string.match(record, '^(%u%d* [%d+]+ %d+ %x+) (%d+) (.*)$')
local ending = now + grace
if over ~= '0' then ending = math.min(ending, tonumber(over)) end
redis.call('HSET', KEYS[2], field, head .. ' ' .. string.format('%.0f', ending) .. ' ' .. rest)
if string.sub(record, 1, 1) == 'P' then -- one of many that hold: see purge_forced
  local forced = redis.call('HGET', KEYS[2], 'f') or '1'
  if not string.find(forced .. ' ', ' ' .. ARGV[2] .. ' ', 1, true) then
    redis.call('HSET', KEYS[2], 'f', forced .. ' ' .. ARGV[2])
  end
end
return 1
