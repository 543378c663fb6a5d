-- What the scripts of the slow path share. It is put in front of them when they
-- are loaded. A script that uses it has these keys, all of one bucket:
--   KEYS[1] leases   sorted set: lease -> expiry, microseconds of this server's time
--   KEYS[2] last     string: the largest fence or ticket given so far
--   KEYS[3] mine     sorted set (all scores 0): "resource NUL id" of one lease's holds and waiters
--   KEYS[4] lock     hash: m -> mode of the holders, h<id> -> record; absent when free
--   KEYS[5] queue    sorted set: id of waiter -> ticket
--   KEYS[6] waiters  hash: id of waiter -> record
--   KEYS[7] gone     sorted set: id that was given up -> until when to remember it
-- ARGV[1] is the prefix of the leases' channels.
-- A record is "<mode> <fence> <since> <lease> <revoked until, or 0> <who>".
-- Numbers go through %.0f: tostring() turns microseconds into 1.79e+15.

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local nowstr = string.format('%.0f', now)

local function parse(record)
  return string.match(record, '^(%u) (%d+) (%d+) (%x+) (%d+) (.*)$')
end

local function alive(lease)
  local expiry = redis.call('ZSCORE', KEYS[1], lease)
  return expiry and tonumber(expiry) > now
end

-- A number above every one given before: the time, or the last number plus one
-- where the clock stands still or was set back.
local function next_number()
  local last = tonumber(redis.call('GET', KEYS[2]) or '0')
  local n = now
  if n <= last then n = last + 1 end
  local s = string.format('%.0f', n)
  redis.call('SET', KEYS[2], s)
  return s
end

local function grant(id, mode, lease, who)
  local fence = next_number()
  redis.call('HSET', KEYS[4], 'm', mode, 'h' .. id,
    mode .. ' ' .. fence .. ' ' .. nowstr .. ' ' .. lease .. ' 0 ' .. who)
  return fence
end

local function grantable(mode)
  local held = redis.call('HGET', KEYS[4], 'm')
  return not held or (held == 'S' and mode == 'S')
end

-- Takes out holders whose lease is over or whose revocation has run out.
-- Returns when the next of the others could end by itself, or nil.
local function purge()
  local all = redis.call('HGETALL', KEYS[4])
  local left, soonest = 0, nil
  for i = 1, #all, 2 do
    if all[i] ~= 'm' then
      local _, _, _, lease, revoked = parse(all[i + 1])
      local ends = tonumber(redis.call('ZSCORE', KEYS[1], lease) or '0')
      local r = tonumber(revoked)
      if r > 0 and r < ends then ends = r end
      if ends <= now then
        redis.call('HDEL', KEYS[4], all[i])
      else
        left = left + 1
        if not soonest or ends < soonest then soonest = ends end
      end
    end
  end
  if left == 0 then redis.call('DEL', KEYS[4]) end
  return soonest
end

-- Hands the resource to the head of the queue: one writer, or all the readers
-- that stand together. Waiters of dead leases are skipped.
local function promote()
  while true do
    local head = redis.call('ZRANGE', KEYS[5], 0, 0)[1]
    if not head then return end
    local record = redis.call('HGET', KEYS[6], head)
    local mode, _, _, lease, _, who
    if record then mode, _, _, lease, _, who = parse(record) end
    if lease and alive(lease) then
      if not grantable(mode) then return end
      redis.call('ZREM', KEYS[5], head)
      redis.call('HDEL', KEYS[6], head)
      local fence = grant(head, mode, lease, who)
      redis.call('PUBLISH', ARGV[1] .. lease, 'g ' .. head .. ' ' .. fence)
      if mode == 'X' then return end
    else
      redis.call('ZREM', KEYS[5], head)
      redis.call('HDEL', KEYS[6], head)
    end
  end
end

-- Ends one hold. False where there is none of that id.
local function let_go(id)
  if redis.call('HDEL', KEYS[4], 'h' .. id) == 0 then return false end
  if redis.call('HLEN', KEYS[4]) <= 1 then -- only m is left
    redis.call('DEL', KEYS[4])
    promote()
  end
  return true
end

-- Takes one waiter out of the queue; those behind it may be due then.
local function give_up(id)
  if redis.call('ZREM', KEYS[5], id) == 0 then return false end
  redis.call('HDEL', KEYS[6], id)
  promote()
  return true
end

-- A request that was given up must not be carried out when a copy of it arrives
-- late, on a connection that was thought dead.
local function remember_gone(id)
  redis.call('ZADD', KEYS[7], now + 60000000, id)
  redis.call('PEXPIRE', KEYS[7], 60000)
end

-- The holders, for the error message of somebody who did not get the lock.
local function holders(reply)
  local all = redis.call('HGETALL', KEYS[4])
  for i = 1, math.min(#all, 16), 2 do
    if all[i] ~= 'm' then
      reply[#reply + 1] = string.sub(all[i], 2)
      reply[#reply + 1] = all[i + 1]
    end
  end
  return reply
end
