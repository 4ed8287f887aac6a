-- Books a failure of an account: a cooldown, or that it is exhausted. A shorter time never replaces a longer one.
--
-- KEYS  1 live hash of the pool
-- ARGV  1 account id · 2 now, ms (0: the server's clock) · 3 cooldown, ms (0: none) · 4 exhausted until, unix seconds (0: not)
-- Returns now, ms.
local account, now = ARGV[1], tonumber(ARGV[2])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local cooldown = tonumber(ARGV[3])
if cooldown > 0 then
  local name = account .. ':c'
  local known = tonumber(redis.call('HGET', KEYS[1], name) or '0')
  if now + cooldown > known then
    redis.call('HSET', KEYS[1], name, string.format('%d', now + cooldown))
  end
end
if ARGV[4] ~= '0' then
  -- The upstream's newest word on its reset is believed, also when it moved forwards.
  redis.call('HSET', KEYS[1], account .. ':x', ARGV[4] .. ':' .. string.format('%d', now))
end
return now
