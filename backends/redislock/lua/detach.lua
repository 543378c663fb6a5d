-- Takes a hold off its lease: it is kept until a time of its own, and found by its key.
-- ARGV: 1 resource, 2 lease, 3 id, 4 for how many microseconds to remember that the
-- id is gone, 5 key, 6 for how many microseconds it is kept; 0: it ends, kept or not
-- Reply: 1 done, 2 done and there is more to hand on, 0 nothing there, -1 the lease is over.
-- Model: kept.DETACH, kept.RELEASE.
local id, key, time = ARGV[3], ARGV[5], tonumber(ARGV[6])
local member = ARGV[1] .. '\0' .. id
local mine = redis.call('ZREM', KEYS[3], member)
redis.call('ZREM', KEYS[8], member)
local live = ends(ARGV[2])
if ARGV[4] ~= '0' then remember_gone(id, tonumber(ARGV[4])) end
local record = redis.call('HGET', KEYS[4], 'h' .. id)
local function done() return live and (more and 2 or 1) or -1 end
if mine == 0 then -- a second one of the same, or to end it after its lease?
  if not record or redis.call('HGET', KEYS[4], 'd' .. key) ~= id then return live and 0 or -1 end
  local _, _, _, lease = parse(record)
  if lease ~= '0' and time > 0 then return live and 0 or -1 end
  if time == 0 then -- nobody has attached it since, or it had another id; what clears a dead lease away finds nothing then
    redis.call('ZREM', KEYS[9], member)
    redis.call('ZREM', KEYS[10], member)
    let_go(id)
    return more and 2 or 1 -- the lease that asks need not be known here
  end
  return done()
end
if not record then
  give_up(id)
  return live and 0 or -1
end
if not live then -- what is decided about it is final
  if not keep(id) then let_go(id) end
  return -1
end
local mode, fence, since, lease, over, asked, who = parse(record)
if asked ~= '-' then
  let_go(id)
  return 0
end
if time == 0 then
  let_go(id)
  return done()
end
forget_key(record)
who = string.gsub(string.gsub(who, '%zm%d+$', ''), '%zd%x+$', '')
redis.call('HSET', KEYS[4], 'k', '1', 'd' .. key, id, 'h' .. id,
  mode .. ' ' .. fence .. ' ' .. since .. ' ' .. lease .. ' ' .. over .. ' - ' .. who .. '\0d' .. key .. '\0m' .. string.format('%.0f', now + time))
keep(id)
return done()
