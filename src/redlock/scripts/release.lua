-- Deletes a key that is still its owner's.
-- KEYS[1] the lock; ARGV: owner, '1' to wake those who wait for it (a try that failed wakes nobody)
-- Answers 1 deleted, 0 not this owner's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if ARGV[2] == '1' then redis.call('PUBLISH', KEYS[1], 'released') end
return 1
