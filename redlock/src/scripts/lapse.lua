-- The head of every script on a queue. KEYS[2] the queue, KEYS[3] when each place was entered last, on this master's clock.
-- A living contender enters anew about once a second. Who was killed does not: its place lapses. At most 1000 a call, so
-- that no call takes long. A time in the future is of a clock that was set back since.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function lapse(lifetime)
  for _, range in ipairs({{'-inf', '(' .. now - lifetime}, {'(' .. now, '+inf'}}) do
    local places = redis.call('ZRANGE', KEYS[3], range[1], range[2], 'BYSCORE', 'LIMIT', 0, 1000)
    if #places > 0 then
      redis.call('ZREM', KEYS[2], unpack(places))
      redis.call('ZREM', KEYS[3], unpack(places))
    end
  end
end
