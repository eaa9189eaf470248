-- Deletes a key that is still its owner's.
-- KEYS[1] the lock, KEYS[2] its queue; ARGV: owner, '1' to wake those who wait for it (a try that failed wakes nobody)
-- Whoever is first in the queue is taken off it and told: "<owner> <place>", on the channel of its own that its place ends
-- with. One that is alive and does not get the lock enters again and keeps its place; one whose channel nobody listens to is
-- dead. The next in the queue hears who was told, in case that one does nothing. Where nobody is in the queue nobody needs to
-- hear: one that is about to enter it looks at the lock after that.
-- Answers 0 not this owner's, 1 deleted, 2 deleted and somebody was told.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if ARGV[2] ~= '1' then return 1 end
local function tell(place, message)
  return redis.call('PUBLISH', KEYS[1] .. '#' .. string.match(place, '%d*$'), message)
end
local message
repeat
  local first = redis.call('ZPOPMIN', KEYS[2])[1]
  if not first then return 1 end
  message = ARGV[1] .. ' ' .. first
until tell(first, message) > 0
local second = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
if second then tell(second, message) end
return 2
