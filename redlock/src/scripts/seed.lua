-- Gives a holder's key to a master that lacks it; never takes another's. The caller must still be valid.
-- After armed.lua. KEYS[1] the lock.
-- Answers 1 held now, -1 another's.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return -1 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ttl)
return 1
