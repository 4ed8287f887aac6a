-- needs: clock records
-- ARGV: time, id, need_c, hold_c, need_t, hold_t, observed_c, observed_t, lease_ms, about, view
-- Metrics of a question: 1 credits, 2 tokens, 3 requests, 4 requests per minute, 5 concurrent, 6 requests per second, 7 the plan's own
-- rolling window (what the plan paid); + 16: counted by the second, from the log.
-- OK ticket epoch {told} | DUP ticket state | NO record metric code limit used held free_at | STALE version | ROLL second | COLD
-- told: what the plan has paid in its period, purchased credits left, what the plan has paid in its rolling window or -1, then for each
-- question of metrics 1 to 3, in order, what is used: this request is counted, what running requests hold is not.
-- Seconds of a record that a log keeps; past that, what the log does not know is counted by the buckets.
local MOST_LOGGED = 100000
local id, about = ARGV[2], ARGV[10]
local need_c, hold_c, need_t, hold_t = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local seen_c, seen_t, lease = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
if not (need_c >= 0 and hold_c >= 0 and need_t >= 0 and hold_t >= 0 and seen_c >= 0 and seen_t >= 0 and lease >= 0
    and need_c <= MOST and hold_c <= MOST and need_t <= MOST and hold_t <= MOST and seen_c <= MOST and seen_t <= MOST) then
  return redis.error_reply('ERR admit: an amount is negative or too large')
end
if id == '' or #about > 512 then return redis.error_reply('ERR admit: no id, or about is longer than 512 bytes') end

local view = {values(ARGV[11])}
local version, day, from, till, period, source, start, quota, allowed, cap, count = unpack(view, 1, 11)
local fields = {'$', 'f:' .. source, 'h:' .. id}
local at = 12
for i = 1, count do
  fields[3 + i] = view[at]
  at = at + 3 + view[at + 2]
  at = at + 1 + 3 * view[at]
end
local got = call('HMGET', KEYS[1], unpack(fields))

if not got[1] then return {'COLD', now} end
if got[3] then return {'DUP', now, got[3], (values(got[3]))} end
local epoch, newest_version, mark, spent, reserved, granted, grants = values(got[1])
if version < newest_version then return {'STALE', now, newest_version} end
local puts, moved = {}, {}
local raised = version > newest_version
if raised then
  -- Also a refusal must say so: the caller has just proved that older versions are old.
  moved[1], moved[2] = '$', pack(epoch, version, mark, spent, reserved, granted, grants)
end
local s = floor(now / 1000)
if got[4] then
  local _, _, newest = cmsgpack.unpack_limit(got[4], 2)
  if newest > s then s = newest end
end
if s < from or s >= till then
  if raised then call('HSET', KEYS[1], unpack(moved)) end
  return {'ROLL', now, s}
end

local fine, slot = floor(s / 300), floor(s / 10)
local counted_c, counted_t = max(hold_c, seen_c), max(hold_t, seen_t)
local none_live, refusal = true, nil
local told, ahead = false, false
local logs, plan
local tells = {0, 0, -1}
at = 12
for i = 1, count do
  local name, signature, codes, raw = view[at], view[at + 1], view[at + 2], got[3 + i]
  local live, newest, bucket, today, c, t, n, held_c, held_t, rate, rated, older, slots, code, windows, signed, paced
  if raw then
    live, newest, bucket, today, c, t, n, held_c, held_t, rate, rated, older, slots, code, windows, signed, paced = values(raw)
  else
    -- A missing record means zero: it begins with the view's windows, all empty.
    local w = {0, 0, 0}
    for j = 1, codes do w[4 * j], w[4 * j + 1], w[4 * j + 2], w[4 * j + 3] = view[at + 2 + j], 0, 0, 0 end
    live, newest, bucket, today, c, t, n, held_c, held_t = 0, s, fine, day, 0, 0, 0, 0, 0
    rate, rated, older, slots, code, windows, signed = slot, 0, 0, '0 0 0 0 0 0', period, pack(unpack(w)), signature
  end
  paced = paced or 0
  if bucket ~= fine or today ~= day or code ~= period or signed ~= signature or rate ~= slot then
    make_records()
    local r = {live, newest, bucket, today, c, t, n, held_c, held_t, rate, rated, older, slots, code, windows, signed, paced}
    shift(r, slot)
    if bucket ~= fine or today ~= day or code ~= period or signed ~= signature then
      roll(name, r, fine, day, period, {unpack(view, at + 3, at + 2 + codes)}, signature)
      r[2] = s
      moved[#moved + 1], moved[#moved + 2] = name, pack(unpack(r))
      if i == 1 then told = true else ahead = true end
    end
    live, newest, bucket, today, c, t, n, held_c, held_t, rate, rated, older, slots, code, windows, signed = unpack(r)
  end
  if i == 1 then none_live = live == 0 end

  local p, w = at + 4 + codes, nil
  for j = 1, view[p - 1] do
    local metric, position, value, gone = view[p], view[p + 1], view[p + 2], nil
    p = p + 3
    if metric > 16 then
      metric, gone = metric - 16, 0
      logs = logs or {}
      logs[name] = at
    end
    if metric <= 3 then
      local need, used, held = 1, n, live
      if metric == 1 then need, used, held = need_c, c, held_c elseif metric == 2 then need, used, held = need_t, t, held_t end
      if not w then w = {values(windows)} end
      used = used + w[4 * position + metric]
      -- What needs nothing passes, also where nothing is left.
      if need > 0 and used + need > value then
        local asked = position == 0 and period or view[at + 2 + position]
        make_records()
        if gone then
          gone = left(name, asked % 16, metric, asked % 16 > 3 and floor(fine / 36) or fine, s)
          used = used - gone
        end
        if used + need > value then
          local r = {0, 0, fine, 0, c, t, n}
          refusal = {'NO', now, name, metric, asked, value, used, held, free_at(name, r, asked, metric, used, need, value, gone)}
          break
        end
      end
      tells[#tells + 1] = metric == 3 and used + 1 or max(0, used - held)
    elseif metric == 4 then
      if rated + older + 1 > value then
        make_records()
        local r = {0, 0, 0, 0, 0, 0, 0, 0, 0, rate, rated, older, slots}
        refusal = {'NO', now, name, 4, 0, value, rated + older, 0, rate_free_at(r, value)}
        break
      end
    elseif metric == 5 then
      if live + 1 > value then
        refusal = {'NO', now, name, 5, 0, value, live, live, value < 1 and -1 or 0}
        break
      end
    elseif metric == 6 then
      -- GCRA: each request takes `step` of the time to come, and two seconds' worth may be taken at once.
      local step, clock = math.ceil(1000000 / value), max(now, s * 1000) * 1000
      local ends = max(paced, clock) + step
      if value < 1 or ends - clock > 2 * value * step then
        refusal = {'NO', now, name, 6, 0, value, value, 0, value < 1 and -1 or math.ceil((ends - 2 * value * step) / 1000000)}
        break
      end
      paced = ends
    else
      w = w or {values(windows)}
      plan = {name, {0, 0, fine, 0, c, t, n}, view[at + 2 + position], c + w[4 * position + 1], held_c, gone}
    end
  end
  if refusal then break end
  puts[2 * i - 1] = name
  puts[2 * i] = pack(live + 1, s, fine, day, c + counted_c, t + counted_t, n + 1, held_c + counted_c,
    held_t + counted_t, slot, rated + 1, older, slots, period, windows, signature, paced)
  at = p
end

local began, _q, _a, _k, used, held, own, purchased, overage, overdraft, past
if not refusal then
  if got[2] then
    began, _q, _a, _k, used, held, own, purchased, overage, overdraft = values(got[2])
  end
  if began ~= start then
    if began then
      past = got[2]
      local gone = call('HGET', KEYS[1], 'p:' .. source)
      -- What it reserved goes with it.
      if gone then reserved = reserved - select(7, values(gone)) end
    end
    used, held, own, purchased, overage, overdraft = 0, 0, 0, 0, 0, 0
  end
  local free = allowed == 1 and max(0, granted - spent - (reserved - own)) or 0
  if need_c > 0 then
    -- What is left of the quota pays first. What was settled before the quota was lowered needs no other fund any more.
    local over = max(0, held + need_c - max(0, quota - used))
    local refused = over - min(over, free) > max(0, cap - overage)
    local never = need_c > quota + cap + (allowed == 1 and max(0, granted - spent) or 0)
    if refused then refusal = {'NO', now, 'plan', 1, 9, quota, used + held, held, never and -1 or 0} end
    if plan then
      -- The same amount is also a rolling limit on what the plan pays; the other funds may pay beyond it, as beyond the period's.
      local name, r, code, sum, own_held, gone = unpack(plan, 1, 6)
      local most = quota + free + max(0, cap - overage)
      local past_it = max(0, own_held + need_c - max(0, quota - (sum - own_held)))
      if past_it - min(past_it, free) > max(0, cap - overage) then
        make_records()
        if gone then
          gone = left(name, code % 16, 1, floor(fine / 36), s)
          sum = sum - gone
          plan[4] = sum
          past_it = max(0, own_held + need_c - max(0, quota - (sum - own_held)))
        end
        if past_it - min(past_it, free) > max(0, cap - overage) then
          local at_last = never and -1 or need_c > most and 0 or free_at(name, r, code, 1, sum, need_c, most, gone)
          refusal = {'NO', now, 'plan', 1, 10, quota, sum, own_held, at_last, refused and 1 or 0}
        end
      end
    end
  end
  tells[1], tells[2] = used, max(0, granted - spent)
  if plan then tells[3] = max(0, plan[4] - plan[5]) end
  held = held + counted_c
  local spill = max(0, held - max(0, quota - used))
  if plan then spill = max(spill, plan[5] + counted_c - max(0, quota - (plan[4] - plan[5]))) end
  spill = min(spill, free)
  reserved = reserved - own + spill
  own = spill
end

if refusal then
  if ahead and not told and got[4] then
    -- The organization tells time to all of its records: it may not be behind one that has moved.
    local r = {values(got[4])}
    r[2] = s
    moved[#moved + 1], moved[#moved + 2] = fields[4], pack(unpack(r))
  end
  if #moved > 0 then
    make_records()
    write(moved)
  end
  return refusal
end
local ticket = pack('L', s, fine, day, period, source, start, hold_c, hold_t, counted_c, counted_t, seen_c, seen_t,
  about, 0, 0, 0, 0, now, unpack(fields, 4, 3 + count))
local e = #puts
puts[e + 1], puts[e + 2] = 'h:' .. id, ticket
puts[e + 3] = 'f:' .. source
puts[e + 4] = pack(start, quota, allowed, cap, used, held, own, purchased, overage, overdraft)
e = e + 4
if past then
  puts[e + 1], puts[e + 2] = 'p:' .. source, past
  e = e + 2
end
if logs then
  -- One cell a second for records that are counted by the second, and what no window can need any more goes.
  make_records()
  for name, p in pairs(logs) do
    local field, oldest = name .. '|s' .. s, s
    local had = call('HGET', KEYS[1], field)
    if had or call('ZLEXCOUNT', KEYS[7], '[' .. name .. '|s', '(' .. name .. '|t') < MOST_LOGGED then
      local a, b, d = numbers(had)
      puts[e + 1], puts[e + 2] = field, text(a + counted_c, b + counted_t, d + 1)
      e = e + 2
      if not had then logged[#logged + 1] = field end
    end
    for j = 1, view[p + 2] do
      local kind = view[p + 2 + j] % 16
      if kind > 1 and kind <= 3 then oldest = min(oldest, (fine - SPAN[kind]) * 300) end
      if kind > 3 and kind <= 5 then oldest = min(oldest, (floor(fine / 36) - SPAN[kind]) * 10800) end
    end
    local old = call('ZRANGEBYLEX', KEYS[7], '[' .. name .. '|s', '(' .. name .. '|s' .. oldest, 'LIMIT', 0, 20)
    if #old > 0 then
      call('ZREM', KEYS[7], unpack(old))
      for j = 1, #old do drops[#drops + 1] = old[j] end
    end
  end
end
local meta = pack(epoch, version, mark, spent, reserved, granted, grants)
if meta ~= got[1] then puts[e + 1], puts[e + 2] = '$', meta end
if cells then write(puts) else call('HSET', KEYS[1], unpack(puts)) end
call('ZADD', KEYS[2], now + lease, id)
if none_live then call('SADD', KEYS[6], string.match(KEYS[1], ':(%d+):q$')) end
return {'OK', now, ticket, epoch, tells}
