-- Refuses where the process is not the one that the lease trusts: ARGV[7] is the term of that one, see
-- server.lua; absent: a process that is alone has only one.
if ARGV[7] then
  local term = string.match(redis.call('INFO', 'replication'), '\nmaster_replid2:(%x+)') or '0'
  if term ~= ARGV[7] and not string.match(term, '^0+$') then return {'STRANGER'} end
end
