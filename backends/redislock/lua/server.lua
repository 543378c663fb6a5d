-- What the scripts share that ask which server they run on. KEYS[2] is the mark of
-- the bucket: which server has had it, and since when. Another server may know
-- less than the one before: a restart, a replica that took over, a slot that moved,
-- or a store that was emptied. Whoever reads the mark knows how long ago that was.
-- A server is a process (run_id) in one term as master (master_replid2 changes when
-- a replica is promoted; it becomes zeros when the last replica is long gone).
-- Model: failover.PROMOTE.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local nowstr = string.format('%.0f', now)

local function server()
  local info
  if redis.REDIS_VERSION_NUM then -- since 7.0 it gives several sections at once
    info = redis.call('INFO', 'server', 'replication')
  else
    info = redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
  end
  local run = string.match(info, '\nrun_id:(%x+)')
  local term = string.match(info, '\nmaster_replid2:(%x+)') or '0'
  if string.match(term, '^0+$') then term = '0' end
  return run or '', term
end

local function marked()
  local run, term = server()
  local mark = redis.call('GET', KEYS[2])
  local old_run, old_term, since
  if mark then old_run, old_term, since = string.match(mark, '^(%x*) (%x+) (%d+)$') end
  if old_run == run and (old_term == term or term == '0') then
    if old_term ~= term then redis.call('SET', KEYS[2], run .. ' ' .. term .. ' ' .. since) end
  else
    since = nowstr
    redis.call('SET', KEYS[2], run .. ' ' .. term .. ' ' .. since)
  end
  return run, term, since
end
