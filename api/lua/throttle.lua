-- KEYS[1]: a caller's. ARGV: calls per minute, calls at once, 1 to count this one (0 only looks).
-- Answers 0, or the milliseconds until one more is taken. Generic cell rate: one number, the moment at which all is free again.
local now = redis.call('TIME')
local at = now[1] * 1000 + math.floor(now[2] / 1000)
local each = 60000 / ARGV[1]
local free = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), at)
local wait = free + each - each * ARGV[2] - at
if wait > 0 then
  return math.ceil(wait)
end
if ARGV[3] == '1' then
  redis.call('SET', KEYS[1], string.format('%.3f', free + each), 'PX', math.ceil(free + each - at) + 1000)
end
return 0
