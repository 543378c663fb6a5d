-- Refuses where the process is not the one that the lease trusts: ARGV[8] is the term of that one, see
-- server.lua; absent: a process that is alone has only one.
if ARGV[8] then
  local term = string.match(redis.call('INFO', 'replication'), '\nmaster_replid2:(%x+)') or '0'
  if term ~= ARGV[8] and not string.match(term, '^0+$') then return {'STRANGER'} end
end
