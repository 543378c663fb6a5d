-- Takes names of records that are over out of the lists of a bucket. Redis has forgotten
-- the records themselves. It raises no error: who calls it does so beside something else.
local function forget(names, ends, most)
  local over = redis.pcall('ZRANGEBYSCORE', ends, '-inf', nowstr, 'LIMIT', 0, most)
  if over[1] then
    redis.pcall('ZREM', names, unpack(over))
    redis.pcall('ZREM', ends, unpack(over))
  end
end
