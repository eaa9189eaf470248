-- Resets the expiry of a key that is still its owner's. Never creates one: an expired lease stays expired.
-- After armed.lua. KEYS[1] the lock.
-- Answers 1 renewed, 0 no such key, -1 another's.
local owner = redis.call('GET', KEYS[1])
if not owner then return 0 end
if owner ~= ARGV[1] then return -1 end
redis.call('PEXPIRE', KEYS[1], ttl)
return 1
