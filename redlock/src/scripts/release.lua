-- Deletes a key that is still its owner's.
-- After lapse.lua and fence.lua. KEYS[1] the lock, KEYS[2] its queue, KEYS[3] when each place was entered last, KEYS[4] the
-- namespace's fences, KEYS[5] until when these are kept
-- ARGV: owner, '1' to tell the queue (a failed attempt tells nobody), lifetime of a place in ms, TTL in ms (0: not known)
-- The first contender is removed from the queue and told "<owner> <place>", on its own channel: the place ends with the
-- channel's number. A contender that is alive and does not get the lock enters again and keeps its place. One without a
-- subscriber on its channel is dead: the next is told instead. After 16 dead ones nobody is told: the rest of them lapse, and
-- a contender behind them finds the lock free at its next check. The second contender hears which was told, in case that one
-- does nothing. With an empty queue nobody is told: a contender that is about to enter reads the lock when it enters.
-- Answers 0 not this owner's, 1 deleted, 2 deleted and a contender was told.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local left = redis.call('PTTL', KEYS[1])
redis.call('DEL', KEYS[1])
local cap = string.match(tostring(redis.pcall('GET', 'redlock:armed')), '^%S+ (%d+)$')
keep_fence(KEYS[1], KEYS[4], KEYS[5], nil, math.max(left, tonumber(ARGV[4]), tonumber(cap or 0)))
if ARGV[2] ~= '1' then return 1 end
lapse(ARGV[3])
local function tell(place, message)
  return redis.call('PUBLISH', KEYS[1] .. '#' .. string.match(place, '%d*$'), message)
end
local message
for dead = 0, 16 do
  if dead == 16 then return 1 end
  local first = redis.call('ZPOPMIN', KEYS[2])[1]
  if not first then return 1 end
  redis.call('ZREM', KEYS[3], first)
  message = ARGV[1] .. ' ' .. first
  if tell(first, message) > 0 then break end
end
local second = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
if second then tell(second, message) end
return 2
