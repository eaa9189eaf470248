-- The head of every script by which a grant goes on or ends: keeps the lock's fence for a while from now, and trims the
-- fences of locks that were not used for as long.
-- The set `kept` says until when each entry of `fences` is kept, in ms on this master's clock: 10 minutes, or twice the
-- longest lease, after the last renewal or release that this master saw. Two members of it are no locks, and have scores
-- beyond every time: '#due' is when fences are trimmed next, '#rank' is where the search for unmarked ones goes on.
-- Where memory is short a write fails, and the grant must go on or end all the same.
local function keep_fence(lock, fences, kept, token, lease)
  local time = redis.call('TIME')
  local now, beyond = time[1] * 1000 + math.floor(time[2] / 1000), 2^52
  local until_then = now + math.max(600000, 2 * lease)
  if token then redis.pcall('ZADD', fences, 'GT', token, lock) end
  redis.pcall('ZADD', kept, 'GT', until_then, lock)
  local due = tonumber(redis.call('ZSCORE', kept, '#due') or 0) - beyond
  if now < due and due <= now + 60000 then return end
  -- A lock that is held, by a lease that nobody renews, is in use.
  local over = redis.call('ZRANGE', kept, '-inf', '(' .. now, 'BYSCORE', 'LIMIT', 0, 100)
  for _, key in ipairs(over) do
    local left = redis.pcall('PTTL', key)
    if type(left) == 'number' and left ~= -2 then
      redis.pcall('ZADD', kept, until_then, key)
    else
      redis.call('ZREM', fences, key)
      redis.call('ZREM', kept, key)
    end
  end
  -- What was never renewed nor released here is kept as long from when it is found.
  local rank = math.max(0, tonumber(redis.call('ZSCORE', kept, '#rank') or 0) - beyond)
  local found = redis.call('ZRANGE', fences, rank, rank + 999)
  for _, key in ipairs(found) do redis.pcall('ZADD', kept, 'NX', until_then, key) end
  redis.pcall('ZADD', kept, beyond + (#found < 1000 and 0 or rank + 1000), '#rank')
  -- While there is more to trim, the next call goes on.
  redis.pcall('ZADD', kept, beyond + (#over < 100 and now + 60000 or 0), '#due')
  -- Where it is lost the entries are found again.
  redis.call('PEXPIRE', kept, 2 * (until_then - now))
end
