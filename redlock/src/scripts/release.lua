-- Deletes a key that is still its owner's.
-- KEYS[1] the lock, KEYS[2] its queue; ARGV: owner, '1' to tell the queue (a failed attempt tells nobody)
-- The first contender is removed from the queue and told "<owner> <place>", on its own channel: the place ends with the
-- channel's number. A contender that is alive and does not get the lock enters again and keeps its place. One without a
-- subscriber on its channel is dead: the next is told instead. The second contender hears which was told, in case that one
-- does nothing. With an empty queue nobody is told: a contender that is about to enter reads the lock when it enters.
-- Answers 0 not this owner's, 1 deleted, 2 deleted and a contender was told.
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
