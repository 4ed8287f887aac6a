-- Stores windows that an upstream reported. The newest observation wins, in whatever order they arrive.
--
-- KEYS  1 live hash of the pool
-- ARGV  1 account id · 2 observed, ms · 3 '1' if the account has shown that it is not exhausted
--       then per window: minutes, percent used, reset (unix seconds, 0: unknown)
-- Returns how many windows were stored.
local account, observed = ARGV[1], tonumber(ARGV[2])
local field = account .. ':w'
local order, windows, stored = {}, {}, 0
for minutes, value in string.gmatch(redis.call('HGET', KEYS[1], field) or '', '(%d+)=([^;]+)') do
  order[#order + 1] = minutes
  windows[minutes] = value
end
for i = 4, #ARGV, 3 do
  local minutes = ARGV[i]
  local before = windows[minutes]
  if not before then
    order[#order + 1] = minutes
  end
  if not before or observed >= tonumber(string.match(before, '(%d+)$')) then
    windows[minutes] = ARGV[i + 1] .. ':' .. ARGV[i + 2] .. ':' .. ARGV[2]
    stored = stored + 1
  end
end
if stored > 0 then
  local parts = {}
  for i, minutes in ipairs(order) do
    parts[i] = minutes .. '=' .. windows[minutes]
  end
  redis.call('HSET', KEYS[1], field, table.concat(parts, ';'))
end
if ARGV[3] == '1' then
  local exhausted = redis.call('HGET', KEYS[1], account .. ':x')
  if exhausted and tonumber(string.match(exhausted, '(%d+)$')) < observed then
    redis.call('HDEL', KEYS[1], account .. ':x')
  end
end
return stored
