-- Gives a holder's key to a master that lacks it; never takes another's. The caller must still be valid.
-- After armed.lua and fence.lua. KEYS[1] the lock, KEYS[2] the namespace's fences, KEYS[3] until when these are kept.
-- The token is carried into the fence, as by renew.lua.
-- Answers 1 held now, -1 another's.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return -1 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ttl)
keep_fence(KEYS[1], KEYS[2], KEYS[3], ARGV[4], math.max(ttl, cap))
return 1
