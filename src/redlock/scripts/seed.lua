-- Gives a holder's key to a node that lacks it; never takes another's. The caller's own validity must be running.
-- KEYS[1] the lock; ARGV: owner, TTL in ms, run_id that the armed marker must name ('' where there is no marker)
-- Answers 1 held now, -1 another's, -2 not armed, -3 TTL not between 1 ms and the cap.
local ttl = tonumber(ARGV[2])
if ttl <= 0 then return -3 end
if ARGV[3] ~= '' then
  local run_id, cap = string.match(redis.call('GET', 'redlock:armed') or '', '^(%S+) (%d+)$')
  if run_id ~= ARGV[3] then return -2 end
  if ttl > tonumber(cap) then return -3 end
end
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return -1 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ttl)
return 1
