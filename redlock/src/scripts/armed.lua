-- The head of every script that extends a lease: the master must be armed, and grant the TTL.
-- ARGV: owner, TTL in ms, run_id that the armed marker must name ('' where there is no marker), token
-- Answers -2 not armed, -3 TTL not between 1 ms and the cap.
-- The marker is not among KEYS: clients may only read it, and a declared key needs write permission.
local ttl, cap = tonumber(ARGV[2]), 0
if ttl <= 0 then return -3 end
if ARGV[3] ~= '' then
  local run_id, longest = string.match(redis.call('GET', 'redlock:armed') or '', '^(%S+) (%d+)$')
  if run_id ~= ARGV[3] then return -2 end
  cap = tonumber(longest)
  if ttl > cap then return -3 end
end
