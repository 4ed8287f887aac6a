-- Takes the account whose poll has been due for longest, and puts it off, so that nobody else takes it meanwhile.
--
-- KEYS  1 accounts by when they are due, ms
-- ARGV  1 put off by, ms
-- Returns its id; nothing if none is due.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1)
if not found[1] then
  return false
end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), found[1])
return found[1]
