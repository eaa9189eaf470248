-- Resets the expiry of a key that is still its owner's. Never creates one: nothing expired is revived.
-- KEYS[1] the lock; ARGV: owner, TTL in ms, run_id that the armed marker must name ('' where there is no marker)
-- Answers 1 renewed, 0 no such key, -1 another's, -2 not armed, -3 TTL not between 1 ms and the cap.
-- The marker is not among KEYS: clients may only read it, and a declared key needs leave to write.
local ttl = tonumber(ARGV[2])
if ttl <= 0 then return -3 end
if ARGV[3] ~= '' then
  local run_id, cap = string.match(redis.call('GET', 'redlock:armed') or '', '^(%S+) (%d+)$')
  if run_id ~= ARGV[3] then return -2 end
  if ttl > tonumber(cap) then return -3 end
end
local owner = redis.call('GET', KEYS[1])
if not owner then return 0 end
if owner ~= ARGV[1] then return -1 end
redis.call('PEXPIRE', KEYS[1], ttl)
return 1
