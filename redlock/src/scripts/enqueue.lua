-- Enters the queue of a lock, or keeps the place there, and reads the lock in the same call.
-- After owner.lua and lapse.lua. KEYS[1] the lock, KEYS[2] the queue, KEYS[3] when each place was entered last
-- ARGV: place, priority (-1000 to 1000), how long it has waited in microseconds, lifetime of a place in ms
-- Places are ordered by priority, then by the time of arrival on this master's clock, in quarters of a millisecond since 2025:
-- 43 bits of time and 10 of priority are exact in a double.
-- Answers owner (false without), time to live in ms (-2 without a key, -1 for a key without end), contenders ahead.
local arrived = (time[1] - 1735689600) * 4000 + math.floor((time[2] - ARGV[3]) / 250)
redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', arrived - ARGV[2] * 2^43), ARGV[1])
redis.call('ZADD', KEYS[3], now, ARGV[1])
lapse(ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('PEXPIRE', KEYS[3], ARGV[4])
return {owner, redis.call('PTTL', KEYS[1]), redis.call('ZRANK', KEYS[2], ARGV[1])}
