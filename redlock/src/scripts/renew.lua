-- Resets the expiry of a key that is still its owner's. Never creates one: an expired lease stays expired.
-- After armed.lua and fence.lua. KEYS[1] the lock, KEYS[2] the namespace's fences, KEYS[3] until when these are kept.
-- The token is carried into the fence: a master that restarted has forgotten it, and must not vote for a smaller one.
-- Answers 1 renewed, 0 no such key, -1 another's.
local owner = redis.call('GET', KEYS[1])
if not owner then return 0 end
if owner ~= ARGV[1] then return -1 end
redis.call('PEXPIRE', KEYS[1], ttl)
keep_fence(KEYS[1], KEYS[2], KEYS[3], ARGV[4], math.max(ttl, cap))
return 1
