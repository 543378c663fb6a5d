-- What the scripts of the slow path share. It is put in front of them when they
-- are loaded. A script that uses it has these keys, all of one bucket:
--   KEYS[1] leases   sorted set: lease -> expiry, microseconds of this server's time; 0: dead for good;
--                    "lease!" -> the same expiry where there may be something in revoked;
--                    "kept" -> the first moment in kept ends;
--                    the mark of the bucket, see server.lua -> -1
--   KEYS[2] last     string: the largest fence or ticket given so far
--   KEYS[3] mine     sorted set (all scores 0): "resource NUL id" of one lease's holds and waiters
--   KEYS[4] lock     hash: m -> mode of the holders, h<id> -> record, s -> of permits, a digit for
--                    each slot: 1 it is taken; f -> 1: a release was forced, and after it the ids
--                    of permits whose grace runs, each after a blank; k -> 1: a hold has a time of its own;
--                    d<key> -> id of a hold that is detached, or was and is attached; absent when free
--   KEYS[5] queue    sorted set: id of waiter -> ticket
--   KEYS[6] waiters  hash: id of waiter -> record
--   KEYS[7] gone     sorted set: id that was given up -> until when to remember it
--   KEYS[8] revoked  sorted set: "resource NUL id" of the lease's holds whose forced release it
--                    has not acknowledged yet -> grace in microseconds
-- and, where a hold may leave its lease (release, unless it was asked for without a time of its own; reap, force_release):
--   KEYS[9] kept     sorted set (all scores 0): "resource NUL id" of the holds of no lease
--   KEYS[10] kept ends  sorted set: the same -> when the time of the hold is over
-- ARGV[1] is the resource, ARGV[2] the lease of KEYS[3] and KEYS[8], ARGV[3] an id.
-- A mode is X, S, or P and how many permits there are. The fence of a permit ends with + and its slot.
-- A record is "<mode> <fence> <since> <lease> <end> <asked> <who>": end is when an
-- acknowledged revocation is over, or 0; asked is the shortest grace of a forced
-- release, or "-". who ends with NUL and c where the sidecar has it for several apps.
-- It ends with NUL, m and a number where the hold is there whatever becomes of its lease: of a waiter
-- for how many microseconds, of a hold until when. The lease of a hold that is kept by that alone is 0.
-- Before that, NUL, d and a key stand where it is detached, or was and is attached.
-- Numbers go through %.0f: tostring() turns microseconds into 1.79e+15.
-- Each script takes a bounded number of steps, whatever hangs on the resource.
-- "more" says that it stopped before the end; the caller goes on with another.

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local nowstr = string.format('%.0f', now)
local more = false

-- Sends a message to the sidecar of a lease. Its channel begins with the prefix that is in each key.
local channel
local function publish(lease, message)
  channel = channel or string.match(KEYS[1], '^{(.*):%d+}:leases$') .. ':lease:'
  redis.call('PUBLISH', channel .. lease, message)
end

local function parse(record)
  return string.match(record, '^(%u%d*) ([%d+]+) (%d+) (%x+) (%d+) (%S+) (.*)$')
end

-- When a lease ends, 0 where it is not known or dead for good. Many holders and waiters are of
-- the same lease: each is asked for once.
local scores = {}
local function score(lease)
  local expiry = scores[lease]
  if not expiry then
    expiry = tonumber(redis.call('ZSCORE', KEYS[1], lease) or '0')
    scores[lease] = expiry
  end
  return expiry
end

-- When a lease ends, or nil when it is over. What looks over to a script that
-- acts on it is over for good: the server's clock may be set back later. Where it was set back,
-- a lease whose sidecar is gone lasts no longer than any lease may (lock.MaxTTL), from when that is seen.
-- Model: lease.EXPIRE, queue.DEAD.
local function ends(lease)
  local expiry = score(lease)
  if expiry > now + 600000000 then
    expiry = now + 600000000
    redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', expiry), lease)
    scores[lease] = expiry
  end
  if expiry > now then return expiry end
  if expiry > 0 then
    redis.call('ZADD', KEYS[1], 'XX', 0, lease)
    scores[lease] = 0
  end
  return nil
end

-- Until when a hold is there whatever becomes of its lease, by two fields of its record; 0: not. A
-- forced release ends that.
local function least(asked, who)
  if asked ~= '-' then return 0 end
  return tonumber(string.match(who, '%zm(%d+)$', -20) or '0') -- at most 18 at the end: who may be long
end

-- A number above every one given before: the time, or the last number plus one
-- where the clock stands still or was set back.
-- Model: queue.FENCE.
local last
local function next_number()
  last = last or tonumber(redis.call('GET', KEYS[2]) or '0')
  last = math.max(now, last + 1)
  local s = string.format('%.0f', last)
  redis.call('SET', KEYS[2], s)
  return s
end

-- How many permits a mode has, or nil.
local function limit(mode) return tonumber(string.match(mode, '^P(%d+)$')) end

-- The slots of permits: read once, as there may be thousands, and written by whoever has
-- changed some.
local slots, changed
local function read_slots()
  slots = slots or redis.call('HGET', KEYS[4], 's')
  return slots
end
local function mark(slot, digit)
  slots = string.sub(slots, 1, slot) .. digit .. string.sub(slots, slot + 2)
  changed = true
end
local function write_slots()
  if changed then redis.call('HSET', KEYS[4], 's', slots) end
  changed = false
end

-- Takes the lowest slot that is free, for a request that is grantable.
local function take_slot(permits)
  slots = read_slots() or string.rep('0', permits)
  local slot = string.find(slots, '0', 1, true) - 1
  mark(slot, '1')
  return slot
end

-- Forgets the key of a hold by its record, if it has one.
local function forget_key(record)
  local key = string.match(record, '%zd(%x+)%zm%d+$', -90)
  if key then redis.call('HDEL', KEYS[4], 'd' .. key) end
end

-- Gives back what a hold has beside its record: its key, and its slot, if it is a permit, and says that.
local function free_slot(record)
  forget_key(record)
  local slot = string.match(record, '^P%d+ %d+%+(%d+) ')
  if slot then
    read_slots()
    mark(tonumber(slot), '0')
  end
  return slot
end

-- Whoever grants writes the slots after it.
-- Model: lease.GRANT.
local function grant(id, mode, lease, who)
  local fence = next_number()
  local permits = limit(mode)
  if permits then fence = fence .. '+' .. take_slot(permits) end
  local at, time = string.match(who, '%zm()(%d+)$', -20)
  if at then
    who = string.sub(who, 1, at - 1) .. string.format('%.0f', now + time)
    redis.call('HSET', KEYS[4], 'k', '1')
  end
  redis.call('HSET', KEYS[4], 'm', mode, 'h' .. id,
    mode .. ' ' .. fence .. ' ' .. nowstr .. ' ' .. lease .. ' 0 - ' .. who)
  return fence
end

local function grantable(mode)
  local held = redis.call('HGET', KEYS[4], 'm')
  if not held then return true end
  if held ~= mode or mode == 'X' then return false end
  return mode == 'S' or string.find(read_slots(), '0', 1, true) ~= nil
end

-- Deletes the lock when no holder is left in it, and says so.
local function freed()
  write_slots()
  local n = redis.call('HLEN', KEYS[4])
  if n > 4 or (n > 1 and n > 1 + redis.call('HEXISTS', KEYS[4], 'f') + redis.call('HEXISTS', KEYS[4], 's')
    + redis.call('HEXISTS', KEYS[4], 'k')) then return false end
  redis.call('DEL', KEYS[4])
  slots = nil
  return true
end

-- Takes out the permits whose grace is over, and returns when that of another will be; nil
-- where none runs.
local function purge_forced()
  local forced = redis.call('HGET', KEYS[4], 'f')
  if not forced then return nil end
  local ended, soonest = {}, nil
  local left = string.gsub(forced, ' (%S+)', function(id)
    local record = redis.call('HGET', KEYS[4], 'h' .. id)
    if not record then return '' end
    local _, _, _, _, over = parse(record)
    over = tonumber(over)
    if over > now then
      if not soonest or over < soonest then soonest = over end
      return nil
    end
    ended[#ended + 1] = 'h' .. id
    free_slot(record)
    return ''
  end, 16)
  if ended[1] then redis.call('HDEL', KEYS[4], unpack(ended)) end
  if left ~= forced then redis.call('HSET', KEYS[4], 'f', left) end
  return soonest
end

-- Takes out holders that are over, until it finds one that is not: it is enough
-- that one holds the lock. Returns when that one could end by itself; nil when the
-- lock is free. It looks at any of them, and not at the first: a table of many does not
-- shrink where its beginning was emptied. Of many permits it so misses some of the dead:
-- the sidecar whose turn it is clears them away.
-- Model: force.HANDON.
local function purge()
  for _ = 1, 3 do
    local some = redis.call('HRANDFIELD', KEYS[4], 16, 'WITHVALUES')
    local ended, soonest = {}, nil
    for i = 1, #some, 2 do
      local field = some[i]
      if string.sub(field, 1, 1) == 'h' then
        local _, _, _, lease, over, asked, who = parse(some[i + 1])
        local e = ends(lease)
        local own = least(asked, who)
        if own > now and (not e or e < own) then e = own end
        over = tonumber(over)
        if e and over > 0 and over < e then e = over end
        if not e or e <= now then
          ended[#ended + 1] = field
          free_slot(some[i + 1])
        elseif not soonest or e < soonest then
          soonest = e
        end
      end
    end
    if ended[1] then redis.call('HDEL', KEYS[4], unpack(ended)) end
    if soonest then
      local grace = #some == 32 and purge_forced() -- not all were looked at
      if grace and grace < soonest then soonest = grace end
      write_slots()
      return soonest
    end
    if freed() then return nil end
  end
  more = true
  return now
end

-- Hands the resource to the head of the queue: one writer, the readers that
-- stand together, or as many as there are permits. Waiters of dead leases are skipped.
-- Mostly one is enough, so it looks at one, and at more together after that.
-- Model: queue.NEXT.
local function promote()
  local granted, most = 0, 0
  for _ = 1, 3 do
    local left, done, full = {}, false, false
    local ids = redis.call('ZRANGE', KEYS[5], 0, most)
    for _, id in ipairs(ids) do
      local record = redis.call('HGET', KEYS[6], id)
      local mode, lease, who, _
      if record then mode, _, _, lease, _, _, who = parse(record) end
      if lease and ends(lease) then
        done = not grantable(mode)
        full = not done and granted == 16
        if done or full then break end
        local fence = grant(id, mode, lease, who)
        publish(lease, 'g ' .. id .. ' ' .. fence)
        granted = granted + 1
        done = mode == 'X'
      end
      left[#left + 1] = id
      if done then break end
    end
    if left[1] then
      redis.call('ZREM', KEYS[5], unpack(left))
      redis.call('HDEL', KEYS[6], unpack(left))
    end
    write_slots()
    if full then break end
    if done or #ids <= most then return end
    most = 15
  end
  more = true
end

-- Names a forced release until it is acknowledged, and has heartbeats look for it.
-- Model: force.FORCE.
local function revoke(lease, expiry, grace)
  redis.call('ZADD', KEYS[1], string.format('%.0f', expiry), lease .. '!')
  redis.call('ZADD', KEYS[8], grace, ARGV[1] .. '\0' .. ARGV[3])
end

-- Ends one hold, of the lease ARGV[2]. False where there is none of that id.
local function let_go(id)
  local field = 'h' .. id
  local record = redis.call('HGET', KEYS[4], field)
  if not record then return false end
  redis.call('HDEL', KEYS[4], field)
  if redis.call('HEXISTS', KEYS[4], 'f') == 1 then redis.call('ZREM', KEYS[8], ARGV[1] .. '\0' .. id) end
  local permit = free_slot(record)
  if freed() or permit or (redis.call('EXISTS', KEYS[5]) == 1 and not purge()) then promote() end
  return true
end

-- Has who is next in the queue ask again, and so learn how long a hold is kept.
local function wake_head()
  local head = redis.call('ZRANGE', KEYS[5], 0, 0)[1]
  local waiter = head and redis.call('HGET', KEYS[6], head)
  if waiter then
    local _, _, _, lease = parse(waiter)
    publish(lease, 'x ' .. head)
  end
end

-- Notes until when a hold of no lease is kept.
local function keep_until(member, own)
  local till = string.format('%.0f', own)
  redis.call('ZADD', KEYS[10], till, member)
  local first = redis.call('ZSCORE', KEYS[1], 'kept')
  if not first or tonumber(first) > own then redis.call('ZADD', KEYS[1], till, 'kept') end
  wake_head()
end

-- Tells a lease that it has a hold no more. Its list of those is key. It is told until it says that it knows.
local function taken_away(lease, expiry, key, id)
  redis.call('ZADD', KEYS[1], string.format('%.0f', expiry), lease .. '!')
  redis.call('ZADD', key, 0, ARGV[1] .. '\0' .. id)
  publish(lease, 'r ' .. id .. ' 0 ' .. ARGV[1])
end

-- Moves a hold whose own time is not over off its lease, and says so. Who is next in the queue asks
-- again, and so learns how long it is.
-- Model: kept.KEEP.
local function keep(id)
  local record = redis.call('HGET', KEYS[4], 'h' .. id)
  if not record then return false end
  local mode, fence, since, _, _, asked, who = parse(record)
  local own = least(asked, who)
  if own <= now then return false end
  local member = ARGV[1] .. '\0' .. id
  redis.call('HSET', KEYS[4], 'h' .. id, mode .. ' ' .. fence .. ' ' .. since .. ' 0 0 - ' .. who)
  redis.call('ZADD', KEYS[9], 0, member)
  keep_until(member, own)
  return true
end

-- Takes one waiter out of the queue; those behind it may be due then.
local function give_up(id)
  if redis.call('ZREM', KEYS[5], id) == 0 then return end
  redis.call('HDEL', KEYS[6], id)
  promote()
end

-- A request that was given up must not be carried out when a copy of it arrives
-- late, on a connection that was thought dead.
-- Model: retry.COPY.
local function remember_gone(id, micros)
  redis.call('ZADD', KEYS[7], string.format('%.0f', now + micros), id)
  local ms = math.ceil(micros / 1000)
  if redis.call('PTTL', KEYS[7]) < ms then redis.call('PEXPIRE', KEYS[7], ms) end
end

-- A record for people: what is only kept is of no lease.
local function shown(record)
  local mode, fence, since, lease, over, asked, who = parse(record)
  if least(asked, who) <= now or score(lease) > now then return record end
  return mode .. ' ' .. fence .. ' ' .. since .. ' 0 ' .. over .. ' ' .. asked .. ' ' .. who
end

-- Some of the holders, for the error message of somebody who did not get the lock.
local function holders(reply)
  local page = redis.call('HSCAN', KEYS[4], '0', 'COUNT', 8)[2]
  for i = 1, math.min(#page, 16), 2 do
    if string.sub(page[i], 1, 1) == 'h' then
      reply[#reply + 1] = string.sub(page[i], 2)
      reply[#reply + 1] = shown(page[i + 1])
    end
  end
  return reply
end
