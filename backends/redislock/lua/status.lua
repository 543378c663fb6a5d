-- Who holds and who waits, dead leases left out.
-- Reply: {time, {id, record, …}, {id, record, …}}
local function living(ids, records)
  local out = {}
  for i = 1, #ids do
    local record = records[i]
    if record then
      local _, _, _, lease, revoked = parse(record)
      if alive(lease) and (revoked == '0' or tonumber(revoked) > now) then
        out[#out + 1] = ids[i]
        out[#out + 1] = record
      end
    end
  end
  return out
end
local ids, records = {}, {}
local all = redis.call('HGETALL', KEYS[4])
for i = 1, #all, 2 do
  if all[i] ~= 'm' then
    ids[#ids + 1] = string.sub(all[i], 2)
    records[#records + 1] = all[i + 1]
  end
end
local held = living(ids, records)
ids, records = redis.call('ZRANGE', KEYS[5], 0, -1), {}
for i = 1, #ids do records[i] = redis.call('HGET', KEYS[6], ids[i]) end
return {nowstr, held, living(ids, records)}
