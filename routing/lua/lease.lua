-- Takes a slot on the first account that has one free, remembers the session's account and holds room for its turn. One atomic step.
-- Needs holds.lua.
--
-- KEYS  1 live hash of the pool · 2 entry of the session · 3 mean turns of members · 4.. slots of the candidates, in the order to try
-- ARGV  1 request id · 2 now, ms · 3 length of the lease, ms · 4 seconds that the entry lives (0: no session)
--       5 '1' if no entry was seen when the candidates were ranked · 6 '1' if the request begins a turn · 7 predicted turn
--       8 what is held for it, micro-credits both · 9 minute in which the hold lapses · 10 member id · 11 mean turn to start with
--       then per candidate: account id, cap (-1: none), `home:stand_in:since` of the entry if this one is taken
-- Returns the position of the candidate taken, 1-based; 0 if every one is at its cap.
local request, now, lease, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local count = #KEYS - 3
local order = {}
for i = 1, count do
  order[i] = i
end

-- Two first requests of one session raced: the second follows the first.
local text = ttl > 0 and redis.call('GET', KEYS[2])
if text and ARGV[5] == '1' then
  local home = string.match(text, '^%d+')
  for i = 2, count do
    if ARGV[9 + 3 * i] == home then
      table.remove(order, i)
      table.insert(order, 1, i)
      break
    end
  end
end

-- What the request takes is held on `account`; where the session held before, it lets go. Returns the entry's new text.
local function held(account, prefix)
  local e = entry_of(text)
  local minute, lapses = math.floor(now / 60000), tonumber(ARGV[9])
  local is_moved = e.holder ~= tonumber(account)
  local amount = e.held
  if ARGV[6] == '1' then
    -- A turn that was given up has told nobody that it is over.
    fold(e, KEYS[3], ARGV[10], ARGV[11])
    e.turn, amount = tonumber(ARGV[7]), tonumber(ARGV[8])
  elseif is_moved or e.turn == 0 then
    e.turn, amount = e.turn == 0 and tonumber(ARGV[7]) or e.turn, tonumber(ARGV[8])
  end
  local name = account .. ':h'
  if is_moved and e.held > 0 then
    local old = string.format('%d:h', e.holder)
    redis.call('HSET', KEYS[1], old, moved(redis.call('HGET', KEYS[1], old), minute, e.lapses, e.held, 0, 0))
    e.held = 0
  end
  if is_moved or amount ~= e.held or lapses ~= e.lapses then
    local holds = moved(redis.call('HGET', KEYS[1], name), minute, e.lapses, e.held, lapses, amount)
    redis.call('HSET', KEYS[1], name, holds, account .. ':l', ARGV[2])
  else
    redis.call('HSET', KEYS[1], account .. ':l', ARGV[2])
  end
  e.served, e.held, e.lapses, e.holder = now, amount, lapses, tonumber(account)
  return entry_text(prefix, e)
end

for _, i in ipairs(order) do
  local slots = KEYS[3 + i]
  local account, cap, prefix = ARGV[9 + 3 * i], tonumber(ARGV[10 + 3 * i]), ARGV[11 + 3 * i]
  local free = true
  if cap >= 0 then
    -- Leases of processes that died end by themselves.
    redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
    free = redis.call('ZCARD', slots) < cap or redis.call('ZSCORE', slots, request) ~= false
  end
  if free then
    redis.call('ZADD', slots, 'GT', now + lease, request)
    redis.call('PEXPIRE', slots, 2 * lease + 60000)
    if ttl > 0 then
      redis.call('SET', KEYS[2], held(account, prefix), 'EX', ttl)
    else
      redis.call('HSET', KEYS[1], account .. ':l', ARGV[2])
    end
    return i
  end
end
return 0
