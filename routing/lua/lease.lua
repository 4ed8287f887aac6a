-- Takes a slot on the first account that has one free, and remembers the session's account. One atomic step.
--
-- KEYS  1 live hash of the pool · 2 entry of the session · 3.. slots of the candidates, in the order to try them
-- ARGV  1 request id · 2 now, ms · 3 length of the lease, ms · 4 seconds that the entry lives (0: no session)
--       5 '1' if no entry was seen when the candidates were ranked
--       then per candidate: account id, cap (-1: none), value of the entry if this one is taken
-- Returns the position of the candidate taken, 1-based; 0 if every one is at its cap.
local request, now, lease, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local count = #KEYS - 2
local order = {}
for i = 1, count do
  order[i] = i
end

-- Two first requests of one session raced: the second follows the first.
if ttl > 0 and ARGV[5] == '1' then
  local entry = redis.call('GET', KEYS[2])
  local home = entry and string.match(entry, '^%d+')
  for i = 2, count do
    if ARGV[3 + 3 * i] == home then
      table.remove(order, i)
      table.insert(order, 1, i)
      break
    end
  end
end

for _, i in ipairs(order) do
  local slots = KEYS[2 + i]
  local account, cap, value = ARGV[3 + 3 * i], tonumber(ARGV[4 + 3 * i]), ARGV[5 + 3 * i]
  local free = true
  if cap >= 0 then
    -- Leases of processes that died end by themselves.
    redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
    free = redis.call('ZCARD', slots) < cap or redis.call('ZSCORE', slots, request) ~= false
  end
  if free then
    redis.call('ZADD', slots, 'GT', now + lease, request)
    redis.call('PEXPIRE', slots, 2 * lease + 60000)
    redis.call('HSET', KEYS[1], account .. ':l', ARGV[2])
    if ttl > 0 then
      redis.call('SET', KEYS[2], value, 'EX', ttl)
    end
    return i
  end
end
return 0
