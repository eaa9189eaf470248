-- Reads a lock in one call. After owner.lua.
-- KEYS[1] the lock, KEYS[2] the namespace's fences
-- Answers owner (false without), time to live in ms (-2 without a key, -1 for a key without end), fence (false without).
return {owner, redis.call('PTTL', KEYS[1]), redis.call('ZSCORE', KEYS[2], KEYS[1])}
