-- Gives the living leases of a bucket: one for each sidecar that uses it, and 0 where holds are of none.
-- KEYS: 1 leases
local t = redis.call('TIME')
local living = {}
for _, m in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', t[1] * 1000000 + t[2]), '+inf')) do
  if string.sub(m, -1) ~= '!' and m ~= 'kept' then living[#living + 1] = m end
end
if redis.call('ZSCORE', KEYS[1], 'kept') then living[#living + 1] = '0' end
return living
