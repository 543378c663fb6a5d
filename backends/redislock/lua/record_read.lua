-- Gives a record as it stands, and the time. KEYS: 1 record
local record = redis.call('GET', KEYS[1])
if not record then return false end
local t = redis.call('TIME')
return {string.format('%.0f', t[1] * 1000000 + t[2]), record}
