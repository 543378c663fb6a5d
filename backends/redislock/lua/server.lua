-- What the scripts share that ask which server they run on. The first member of leases,
-- KEYS[1], is the mark of the bucket: which server has had it, and since when. Another
-- server may know less than the one before: a restart, a replica that took over, a slot that
-- moved, or a store that was emptied. Whoever reads the mark knows how long ago that was.
-- The score of the mark says for how long that is so at least: -1, less the microseconds that a sidecar has
-- counted on its own clock. No clock of the server can: it may have been set meanwhile.
-- A server is a process (run_id) in one term as master (master_replid2 changes when
-- a replica is promoted; it becomes zeros when the last replica is long gone).
-- Model: failover.PROMOTE.
local info
if redis.REDIS_VERSION_NUM then -- since 7.0 it gives several sections at once
  info = redis.call('INFO', 'server', 'replication')
else
  info = redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
end
-- It has the time at which Redis began with the script.
local nowstr = string.match(info, '\nserver_time_usec:(%d+)')
if not nowstr then
  local t = redis.call('TIME')
  nowstr = string.format('%.0f', t[1] * 1000000 + t[2])
end
local now = tonumber(nowstr)

local function marked(mark)
  local run = string.match(info, '\nrun_id:(%x+)') or ''
  local term = string.match(info, '\nmaster_replid2:(%x+)') or '0'
  if string.match(term, '^0+$') then term = '0' end
  local old_run, old_term, since
  local age = '-1'
  if mark then old_run, old_term, since = string.match(mark, '^!(%x*) (%x+) (%d+)$') end
  if old_run ~= run or (old_term ~= term and term ~= '0') then
    since = nowstr
  elseif old_term == term then
    return run, term, since
  else
    age = redis.call('ZSCORE', KEYS[1], mark)
  end
  redis.call('ZREM', KEYS[1], mark or '')
  redis.call('ZADD', KEYS[1], age, '!' .. run .. ' ' .. term .. ' ' .. since)
  return run, term, since
end
