-- Deletes a key that is still its owner's.
-- KEYS[1] the lock, KEYS[2] its queue; ARGV: owner, '1' to wake those who wait for it (a try that failed wakes nobody)
-- Whoever is first in the queue is taken off it and named to all who listen: "<owner> <waiter>". One that is alive and does
-- not get the lock enters again and keeps its place; one that is dead is thus gone.
-- Answers 0 not this owner's, 1 deleted, 2 deleted and somebody was named.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if ARGV[2] ~= '1' then return 1 end
local first = redis.call('ZPOPMIN', KEYS[2])[1]
redis.call('PUBLISH', KEYS[1], ARGV[1] .. ' ' .. (first or ''))
return first and 2 or 1
