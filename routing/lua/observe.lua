-- Stores windows that an upstream reported. The newest observation wins, in whatever order they arrive.
--
-- KEYS  1 live hash of the pool
-- ARGV  1 account id · 2 observed, ms · 3 '1' if the account has shown that it is not exhausted
--       then per window: minutes, percent used, reset (unix seconds, 0: unknown)
-- Returns how many windows were stored.
local account, observed = ARGV[1], tonumber(ARGV[2])
local stored = 0
for i = 4, #ARGV, 3 do
  local name = account .. ':w' .. ARGV[i]
  local known = redis.call('HGET', KEYS[1], name)
  local before = known and tonumber(string.match(known, '(%d+)$')) or -1
  if observed >= before then
    redis.call('HSET', KEYS[1], name, ARGV[i + 1] .. ':' .. ARGV[i + 2] .. ':' .. ARGV[2])
    stored = stored + 1
  end
end
if ARGV[3] == '1' then
  local exhausted = redis.call('HGET', KEYS[1], account .. ':x')
  if exhausted and tonumber(string.match(exhausted, '(%d+)$')) < observed then
    redis.call('HDEL', KEYS[1], account .. ':x')
  end
end
return stored
