-- Books what an attempt cost: on the account, on the session's turn, and on what is held for it. Needs holds.lua.
--
-- KEYS  1 live hash of the pool · 2 entry of the session · 3 mean turns of members
-- ARGV  1 account id (0: whichever holds) · 2 micro-credits · 3 now, ms · 4 seconds that the entry lives (0: no session)
--       5 what becomes of the hold: 'go' on, 'end' of the turn, 'free' · 6 minute in which it lapses · 7 thousandths of a turn that
--       are held after its end · 8 member id · 9 mean turn to start with
-- Returns what is held for the session now, micro-credits.
local account, credits, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if credits > 0 and account > 0 then
  redis.call('HINCRBY', KEYS[1], ARGV[1] .. ':m', ARGV[2])
end
local text = ARGV[4] ~= '0' and redis.call('GET', KEYS[2])
if not text then
  return 0
end
local e = entry_of(text)
e.spent = e.spent + credits
if e.holder > 0 and (account == e.holder or account == 0) then
  local amount = 0
  if ARGV[5] == 'go' then
    amount = math.max(0, e.held - credits)
  elseif ARGV[5] == 'end' then
    amount = math.floor(e.turn * tonumber(ARGV[7]) / 1000)
  end
  local name, lapses = string.format('%d:h', e.holder), tonumber(ARGV[6])
  if amount ~= e.held or lapses ~= e.lapses then
    local minute = math.floor(now / 60000)
    redis.call('HSET', KEYS[1], name, moved(redis.call('HGET', KEYS[1], name), minute, e.lapses, e.held, lapses, amount))
  end
  e.held, e.lapses = amount, lapses
  if credits > 0 then
    e.served = math.max(e.served, now)
  end
end
if ARGV[5] == 'end' then
  fold(e, KEYS[3], ARGV[8], ARGV[9])
end
redis.call('SET', KEYS[2], entry_text(string.format('%d:%d:%d', e.home, e.stand_in, e.since), e), 'EX', ARGV[4])
return e.held
