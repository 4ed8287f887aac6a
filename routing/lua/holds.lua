-- What is held on an account, by the minute in which it lapses: `total:first;minute=amount;…`. Functions only.

-- The text with `amount` taken out of minute `from` (0: nothing) and `more` put into minute `to` (0: nothing); what lapsed goes.
-- Never below 0: a hold may have been forgotten with the account's troubles.
local function moved(text, now_minute, from, amount, to, more)
  local held, minutes = {}, {}
  for minute, value in string.gmatch(text or '', '(%d+)=(%d+)') do
    minute = tonumber(minute)
    if minute > now_minute then
      minutes[#minutes + 1] = minute
      held[minute] = tonumber(value)
    end
  end
  if held[from] then
    held[from] = math.max(0, held[from] - amount)
  end
  if more > 0 then
    if not held[to] then
      minutes[#minutes + 1] = to
    end
    held[to] = (held[to] or 0) + more
  end
  table.sort(minutes)
  local total, first, parts = 0, 0, {}
  for _, minute in ipairs(minutes) do
    if held[minute] > 0 then
      first = first > 0 and first or minute
      total = total + held[minute]
      parts[#parts + 1] = string.format('%d=%d', minute, held[minute])
    end
  end
  if total == 0 then
    return ''
  end
  return string.format('%d:%d;', total, first) .. table.concat(parts, ';')
end

-- A session's entry (`sticky.Sticky`) as a table of numbers; all 0 where there is none, or it is in another form.
local function entry_of(text)
  local home, stand_in, since, served, mean, spent, turn, held, lapses, holder =
    string.match(text or '', '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$')
  if not home then
    return { home = 0, stand_in = 0, since = 0, served = 0, mean = 0, spent = 0, turn = 0, held = 0, lapses = 0, holder = 0 }
  end
  return {
    home = tonumber(home), stand_in = tonumber(stand_in), since = tonumber(since), served = tonumber(served), mean = tonumber(mean),
    spent = tonumber(spent), turn = tonumber(turn), held = tonumber(held), lapses = tonumber(lapses), holder = tonumber(holder),
  }
end

-- The turn is over: what it cost goes into the session's mean (0.4) and the member's (0.03; `start` before there is any).
local function fold(e, turns, member, start)
  if e.spent <= 0 then
    return
  end
  e.mean = e.mean == 0 and e.spent or math.floor(0.6 * e.mean + 0.4 * e.spent + 0.5)
  local mean = tonumber(redis.call('HGET', turns, member) or start)
  redis.call('HSET', turns, member, string.format('%d', math.floor(0.97 * mean + 0.03 * e.spent + 0.5)))
  e.spent = 0
end

-- `prefix`: home:stand_in:since.
local function entry_text(prefix, e)
  return prefix .. string.format(':%d:%d:%d:%d:%d:%d:%d', e.served, e.mean, e.spent, e.turn, e.held, e.lapses, e.holder)
end
