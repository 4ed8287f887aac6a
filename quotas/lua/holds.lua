-- Holds, how they end, and what pays for them (quotas.md sections 2, 5 and 7).
--
-- A hold as an array: 1 state, 2 second, 3 fine, 4 day, 5 period code, 6 source, 7 fund period, 8-9 estimate c,t, 10-11 counted
-- c,t, 12-13 observed c,t, 14 about, 15-18 booked plan, purchased, overage, overdraft, 19 last seen alive (ms), 20.. record names.
-- A funding entry: 1 start, 2 quota, 3 purchased allowed, 4 overage cap, 5 plan used, 6 held, 7 reserved on purchased,
-- 8 purchased, 9 overage, 10 overdraft.
-- Meta: 1 epoch, 2 version, 3 sweep mark (ms), 4 purchased spent, 5 reserved on purchased, 6 granted, 7 grant version.
local KEEP = 900000
local UNLIMITED = 1000000000000000
local meta, kept_meta
local current, previous, kept_previous
local records, rolling = {}, nil
local places, keep, load, add, entry, set_terms, free, rolled, refit, split, count, finish, emit, save

-- Made by `make_holds()` when a script needs them, as in records.lua.
local function make_holds()
  make_records()

  -- The fields that a hold's funding and records are in.
  function places(h, fields)
    fields[#fields + 1] = 'f:' .. h[6]
    fields[#fields + 1] = 'p:' .. h[6]
    for i = 20, #h do fields[#fields + 1] = h[i] end
    return fields
  end

  function keep(raw)
    kept_meta = raw
    meta = {values(raw)}
  end

  -- Takes what `places` named out of `got`, from `at` on. A record that is missing means zero; it begins with the hold.
  function load(h, got, at)
    current = got[at] and {values(got[at])}
    previous = got[at + 1] and {values(got[at + 1])}
    kept_previous = got[at + 1]
    records = {}
    for i = 20, #h do
      local raw = got[at + i - 18]
      records[i - 19] = raw and {values(raw)} or {
        0, h[2], h[3], h[4], 0, 0, 0, 0, 0, floor(h[2] / 10), 0, 0, '0 0 0 0 0 0', h[5], pack(0, 0, 0), '', 0}
    end
    -- The last one may be the source's own: what the plan paid, for plans whose quota is a rolling limit too.
    rolling = #h >= 20 and string.find(h[#h], '~s', 1, true) and #records or nil
  end

  -- Adds to the cell, day, period and windows of a hold's admission, wherever they are now.
  function add(name, r, h, c, t, n)
    local fine, day, period = h[3], h[4], h[5]
    if fine > r[3] or day > r[4] or period > r[14] then
      -- Newer than its record (failover): advance first, or a roll would never subtract it.
      roll(name, r, max(fine, r[3]), max(day, r[4]), max(period, r[14]))
    end
    if h[2] > r[2] then r[2] = h[2] end
    if c == 0 and t == 0 and n == 0 then return end
    if has_log(r[16]) then
      local field = name .. '|s' .. h[2]
      local old = read({field})[1]
      local a, b, d = numbers(old)
      cells[field] = text(a + c, b + t, d + n)
      if not old then logged[#logged + 1] = field end
    end
    if fine == r[3] and day == r[4] and period == r[14] then
      r[5], r[6], r[7] = r[5] + c, r[6] + t, r[7] + n
      return
    end
    local coarse, open_coarse = floor(fine / 36), floor(r[3] / 36)
    local fields = {}
    if fine >= r[3] - KEEP_FINE then fields[1] = name .. '|f' .. fine end
    if coarse >= open_coarse - KEEP_COARSE then fields[#fields + 1] = name .. '|c' .. coarse end
    if day >= r[4] - KEEP_DAYS then fields[#fields + 1] = name .. '|d' .. day end
    local old = read(fields)
    local kept = {}
    for i = 1, #fields do
      local a, b, d = numbers(old[i])
      kept[i] = text(a + c, b + t, d + n)
    end
    for i = 1, #fields do cells[fields[i]] = kept[i] end
    local w = {values(r[15])}
    if period == r[14] then w[1], w[2], w[3] = w[1] + c, w[2] + t, w[3] + n end
    for p = 4, #w, 4 do
      local kind, inside = w[p] % 16, nil
      if kind <= 3 then
        inside = fine >= r[3] - SPAN[kind]
      elseif kind <= 5 then
        inside = coarse >= open_coarse - SPAN[kind]
      else
        inside = day >= floor(w[p] / 16)
      end
      if inside then w[p + 1], w[p + 2], w[p + 3] = w[p + 1] + c, w[p + 2] + t, w[p + 3] + n end
    end
    r[15] = pack(unpack(w))
  end

  -- The funding entry of a period; made if it is missing, with the terms of the other one. One older than both is not kept.
  function entry(start)
    if current and current[1] == start then return current end
    if previous and previous[1] == start then return previous end
    local like = current or previous
    local e = {start, like and like[2] or UNLIMITED, like and like[3] or 0, like and like[4] or 0, 0, 0, 0, 0, 0, 0, made = true}
    if not current or start > current[1] then
      if current then
        if previous then meta[5] = meta[5] - previous[7] end
        previous = current
      end
      current = e
    elseif not previous or start > previous[1] then
      if previous then meta[5] = meta[5] - previous[7] end
      previous = e
    else
      e.loose = true
    end
    return e
  end

  function set_terms(e, quota, allowed, cap)
    if quota and quota ~= '' then e[2], e[3], e[4] = tonumber(quota), tonumber(allowed), tonumber(cap) end
  end

  -- Purchased credits that no other source has reserved.
  function free(e)
    if e[3] ~= 1 then return 0 end
    return max(0, meta[6] - meta[4] - (meta[5] - e[7]))
  end

  -- What the plan has paid in the rolling window of its length that ends now, and what running requests hold of it.
  function rolled(name)
    local r = records[rolling]
    local kind, w = tonumber(string.match(name, 'w(%d)$')), {values(r[15])}
    local from, to, sum = floor(r[3] / 36), max(floor(r[3] / 36), floor(now / 10800000)), 0
    if to - SPAN[kind] > from then return 0, r[8] end
    local counted = w[4] == kind
    local cells_of = counted and span(name, '|c', from - SPAN[kind], to - SPAN[kind] - 1) or span(name, '|c', to - SPAN[kind], from)
    local got = read(cells_of)
    for i = 1, #got do sum = sum + (numbers(got[i])) end
    sum = (counted and w[5] - sum or sum) + r[5]
    if has_log(r[16]) then sum = sum - left(name, kind, 1, to, max(floor(now / 1000), r[2])) end
    return sum, r[8]
  end

  -- A source's reservation is a function of sums, never shares of holds: so holds cannot strand each other. It is what running
  -- requests hold beyond what is left of the quota; what was settled needs none, also where the quota was lowered since.
  function refit(e, name)
    if e.loose then return end
    local over = max(0, e[6] - max(0, e[2] - e[5]))
    if name and e == current then
      local sum, held = rolled(name)
      over = max(over, held - max(0, e[2] - (sum - held)))
    end
    local want = min(over, free(e))
    meta[5] = meta[5] - e[7] + want
    e[7] = want
  end

  -- Books an amount on a funding entry: allowance, purchased, overage, overdraft, in this order. `name`: the source's own record, if
  -- the quota is a rolling limit too; `undone`: what the plan had paid of this very request, in that record still.
  function split(e, amount, name, undone)
    local room = e[2] - e[5]
    if name then
      local sum, held = rolled(name)
      room = min(room, e[2] - (sum - held - (undone or 0)))
    end
    local plan = min(amount, max(0, room))
    local rest = amount - plan
    local purchased = min(rest, free(e))
    rest = rest - purchased
    local overage = min(rest, max(0, e[4] - e[9]))
    local overdraft = rest - overage
    e[5], e[8], e[9], e[10] = e[5] + plan, e[8] + purchased, e[9] + overage, e[10] + overdraft
    meta[4] = meta[4] + purchased
    return plan, purchased, overage, overdraft
  end

  -- Counts a hold (again): its records, live and held, its funding.
  function count(h)
    for i = 1, #records do
      local r = records[i]
      add(h[19 + i], r, h, h[10], h[11], 1)
      r[1], r[8], r[9] = r[1] + 1, r[8] + h[10], r[9] + h[11]
    end
    local e = entry(h[7])
    e[6] = e[6] + h[10]
    refit(e, rolling and h[#h])
  end

  -- Ends a live hold at c,t: `S` and `O` keep its request, `R` takes it back.
  function finish(h, state, c, t, quota, allowed, cap)
    local n = state == 'R' and -1 or 0
    local name = rolling and h[#h]
    local e = entry(h[7])
    if not e.made then e[6] = e[6] - h[10] end
    set_terms(e, quota, allowed, cap)
    h[15], h[16], h[17], h[18] = split(e, c, name)
    for i = 1, #records do
      local r = records[i]
      add(h[19 + i], r, h, (i == rolling and h[15] or c) - h[10], t - h[11], n)
      r[1], r[8], r[9] = r[1] - 1, r[8] - h[10], r[9] - h[11]
    end
    refit(e, name)
    h[1], h[10], h[11], h[14], h[19] = state, c, t, '', max(now, h[19])
  end

  -- Appends the usage event and marks the organization's stream as having news. Amounts of part 1 are differences.
  function emit(id, part, state, h, c, t, n, plan, purchased, overage, overdraft, ended, outcome, body)
    call('XADD', KEYS[3], '*', 'e', pack(id, part, state, h[2], h[4], h[5], h[6], h[7], c, t, n, plan, purchased,
      overage, overdraft, ended, outcome, unpack(h, 20)), 'b', body)
    call('SADD', KEYS[5], (string.match(KEYS[1], ':(%d+):q$')))
  end

  -- One HSET of all that `load` took and what changed in it, and the hold.
  function save(id, h)
    local puts = {'h:' .. id, pack(unpack(h))}
    local function put(field, value) puts[#puts + 1], puts[#puts + 2] = field, value end
    for i = 1, #records do put(h[19 + i], pack(unpack(records[i]))) end
    if h[6] ~= '' then
      if current then put('f:' .. h[6], pack(unpack(current))) end
      if previous then
        local raw = pack(unpack(previous))
        if raw ~= kept_previous then put('p:' .. h[6], raw) end
      end
    end
    local raw = pack(unpack(meta))
    if raw ~= kept_meta then
      put('$', raw)
      kept_meta = raw
    end
    write(puts)
  end
end
