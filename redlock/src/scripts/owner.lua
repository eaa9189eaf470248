-- The head of every script that shows who holds a lock. KEYS[1] the lock.
-- The owner is false without a key. A key of another type than a string is somebody's, too: it is in the way of every holder.
local owner = redis.pcall('GET', KEYS[1])
if type(owner) == 'table' then
  if not string.find(owner.err, 'WRONGTYPE', 1, true) then return owner end
  owner = 'another type'
end
