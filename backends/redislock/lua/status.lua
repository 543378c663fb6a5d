-- Who holds and who waits, a part of each at a time; what is of dead leases is left out, unless it is kept.
-- ARGV: 1 cursor of the holders, 2 ticket of the last waiter seen, or -inf; an empty
-- one: none of these
-- Reply: {time, next cursor or empty, {id, record, …}, last ticket or empty, {id, record, …}}
local function living(out, id, record)
  if not record then return end
  local _, _, _, lease, over, asked, who = parse(record)
  if score(lease) > now and (over == '0' or tonumber(over) > now) or least(asked, who) > now then
    out[#out + 1] = id
    out[#out + 1] = shown(record)
  end
end
local held, cursor = {}, ''
if ARGV[1] ~= '' then
  local page = redis.call('HSCAN', KEYS[4], ARGV[1], 'COUNT', 64)
  for i = 1, #page[2], 2 do
    if string.sub(page[2][i], 1, 1) == 'h' then living(held, string.sub(page[2][i], 2), page[2][i + 1]) end
  end
  if page[1] ~= '0' then cursor = page[1] end
end
local waiting, ticket = {}, ''
if ARGV[2] ~= '' then
  local ids = redis.call('ZRANGEBYSCORE', KEYS[5], ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, 64)
  for i = 1, #ids, 2 do living(waiting, ids[i], redis.call('HGET', KEYS[6], ids[i])) end
  if #ids == 128 then ticket = string.format('(%.0f', ids[128]) end
end
return {nowstr, cursor, held, ticket, waiting}
