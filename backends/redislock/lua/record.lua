-- What the scripts of records share. KEYS: 1 record, a text that Redis forgets by itself:
-- version, time of writing, value; 2 names of all records of the bucket, each with NUL
-- behind it, score 0; 3 the same names, by the moment in which each record is over.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local nowstr = string.format('%.0f', now)

local function version()
  local record = redis.call('GET', KEYS[1])
  return record and string.match(record, '^%S+') or ''
end
