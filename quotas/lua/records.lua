-- Records, their cells and windows (quotas.md sections 1 and 2).
--
-- A record as an array: 1 live, 2 newest second, 3 fine bucket, 4 day, 5-7 c,t,r of the open bucket, 8 held c, 9 held t,
-- 10 rate slot, 11 its count, 12 sum of 13, 13 six older slots, 14 period code, 15 windows (packed), 16 signature, 17 paced until
-- (us; requests per second: 0 where no limit looks at them). A signature that ends in `L`: the record has a log, a cell of each
-- second `name|s<second>` and their names in KEYS[7], so that the oldest bucket of a window can be counted by the second.
-- Windows, unpacked: period c,t,r, then code,c,t,r each; they hold what closed buckets hold.
--
-- Nothing here writes. Changed cells wait in `cells`, cells that nothing needs any more in `drops`, until `write`. The functions are
-- made by `make_records()`, which a script calls when it needs them: making them costs more than the common admission can spare.
local numbers, text, read, span, drop, roll, shift, free_at, rate_free_at, write, has_log, seconds, left
local cells, drops, logged, SPAN
local KEEP_FINE, KEEP_COARSE, KEEP_DAYS = 288, 240, 40

local function make_records()
  if roll then return end
  -- Closed buckets in a rolling window besides the open one, by kind: W/b, so that W/b + 1 count and a limit is never exceeded.
  SPAN = {0, 60, 288, 56, 240}
  local BUCKET = {0, 300, 300, 10800, 10800}
  cells, drops, logged = {}, {}, {}

  function numbers(text)
    if not text then return 0, 0, 0 end
    local c, t, n = string.match(text, '^(%S+) (%S+) (%S+)$')
    return tonumber(c), tonumber(t), tonumber(n)
  end

  function text(c, t, n)
    -- %d, because concatenating numbers keeps 14 digits only.
    return string.format('%d %d %d', c, t, n)
  end

  function read(fields)
    if #fields == 0 then return fields end
    local got
    for i = 1, #fields, 4000 do
      local some = call('HMGET', KEYS[1], unpack(fields, i, min(i + 3999, #fields)))
      if not got then
        got = some
      else
        for j = 1, #some do got[i + j - 1] = some[j] end
      end
    end
    for i = 1, #fields do got[i] = cells[fields[i]] or got[i] end
    return got
  end

  function span(name, tag, from, to)
    local fields = {}
    for j = from, to do fields[#fields + 1] = name .. tag .. j end
    return fields
  end

  function drop(name, tag, from, to)
    for j = from, to do
      local field = name .. tag .. j
      cells[field] = nil
      drops[#drops + 1] = field
    end
  end

  -- Brings a record to (fine, day, period), and to the windows of `codes` unless they are nil. Changes no sum.
  function roll(name, r, fine, day, period, codes, signature)
    local w = {values(r[15])}
    local was, was_day = r[3], r[4]
    if fine < was then fine = was end
    local coarse, was_coarse = floor(fine / 36), floor(was / 36)
    if fine ~= was or day ~= was_day or period ~= r[14] then
      local c, t, n = r[5], r[6], r[7]
      if c ~= 0 or t ~= 0 or n ~= 0 then
        local fields = {name .. '|f' .. was, name .. '|c' .. was_coarse, name .. '|d' .. was_day}
        local kept = {was >= fine - KEEP_FINE, was_coarse >= coarse - KEEP_COARSE, was_day >= day - KEEP_DAYS}
        local old = read(fields)
        for i = 1, 3 do
          if kept[i] then
            local a, b, d = numbers(old[i])
            cells[fields[i]] = text(a + c, b + t, d + n)
          end
        end
        w[1], w[2], w[3] = w[1] + c, w[2] + t, w[3] + n
        for p = 4, #w, 4 do w[p + 1], w[p + 2], w[p + 3] = w[p + 1] + c, w[p + 2] + t, w[p + 3] + n end
        r[5], r[6], r[7] = 0, 0, 0
      end
      for p = 4, #w, 4 do
        local kind = w[p] % 16
        if kind <= 5 then
          local from, to, tag, n = was, fine, '|f', SPAN[kind]
          if kind > 3 then from, to, tag = was_coarse, coarse, '|c' end
          if to - n > from then
            w[p + 1], w[p + 2], w[p + 3] = 0, 0, 0
          elseif to > from then
            local leaving = read(span(name, tag, from - n, to - n - 1))
            for i = 1, #leaving do
              local a, b, d = numbers(leaving[i])
              w[p + 1], w[p + 2], w[p + 3] = w[p + 1] - a, w[p + 2] - b, w[p + 3] - d
            end
          end
        end
      end
      drop(name, '|f', was - KEEP_FINE, min(fine - KEEP_FINE - 1, was))
      drop(name, '|c', was_coarse - KEEP_COARSE, min(coarse - KEEP_COARSE - 1, was_coarse))
      drop(name, '|d', was_day - KEEP_DAYS, min(day - KEEP_DAYS - 1, was_day))
      -- A newer period starts at 0; an older one must not touch the total.
      if period > r[14] then w[1], w[2], w[3] = 0, 0, 0 end
      r[3], r[4], r[14] = fine, day, period
    end
    if codes and signature ~= r[16] then
      local have = {}
      for p = 4, #w, 4 do have[w[p]] = p end
      local windows = {w[1], w[2], w[3]}
      for i = 1, #codes do
        local code, c, t, n = codes[i], 0, 0, 0
        local p = have[code]
        if p then
          c, t, n = w[p + 1], w[p + 2], w[p + 3]
        else
          local kind, fields = code % 16, nil
          if kind <= 3 then
            fields = span(name, '|f', fine - SPAN[kind], fine)
          elseif kind <= 5 then
            fields = span(name, '|c', coarse - SPAN[kind], coarse)
          else
            fields = span(name, '|d', max(floor(code / 16), day - KEEP_DAYS), day)
          end
          local got = read(fields)
          for j = 1, #got do
            local a, b, d = numbers(got[j])
            c, t, n = c + a, t + b, n + d
          end
        end
        local at = #windows
        windows[at + 1], windows[at + 2], windows[at + 3], windows[at + 4] = code, c, t, n
      end
      w = windows
      r[16] = signature
    end
    r[15] = pack(unpack(w))
  end

  -- Moves the rate slots of a record to `slot`: the count of the open one and the six before it.
  function shift(r, slot)
    local by = slot - r[10]
    if by <= 0 then return end
    local counts, older, sum = {r[11]}, {}, 0
    for word in string.gmatch(r[13], '%S+') do counts[#counts + 1] = tonumber(word) end
    for i = 1, 6 do
      -- The i-th older slot is slot - i, that is the (i - by)-th of the old ones.
      local at = i - by
      older[i] = at >= 0 and counts[at + 1] or 0
      sum = sum + older[i]
    end
    r[10], r[11], r[12], r[13] = slot, 0, sum, table.concat(older, ' ')
  end

  function has_log(signature) return string.byte(signature, -1) == 76 end

  -- The log's cells of a record in the seconds [from, to], the oldest first.
  function seconds(name, from, to)
    return call('ZRANGEBYLEX', KEYS[7], '[' .. name .. '|s' .. from, '[' .. name .. '|s' .. to)
  end

  -- What a rolling window at second `s` counts of a metric although it has left: the part of the oldest bucket that the log knows
  -- to be older than the window. What the log does not know stays in: an incomplete log counts too much, never too little.
  function left(name, kind, metric, bucket, s)
    local size = BUCKET[kind]
    local oldest = bucket - SPAN[kind]
    local gone, got = 0, read(seconds(name, oldest * size, s - SPAN[kind] * size))
    for i = 1, #got do gone = gone + (select(metric, numbers(got[i]))) end
    return min(gone, (select(metric, numbers(read({name .. (kind > 3 and '|c' or '|f') .. oldest})[1]))))
  end

  -- The second at which `need` would fit into a rolling window if nothing else happened; -1 never; 0 for fixed windows,
  -- whose end the caller knows. With a log: `gone` is what `left` took from `used` already.
  function free_at(name, r, code, metric, used, need, value, gone)
    if need > value then return -1 end
    local kind = code % 16
    if kind < 2 or kind > 5 then return 0 end
    local at, tag = r[3], '|f'
    if kind > 3 then at, tag = floor(at / 36), '|c' end
    local first = at - SPAN[kind]
    if used > r[4 + metric] then
      local got = read(span(name, tag, first, at))
      for i = 1, #got do
        local before = used
        used = used - (select(metric, numbers(got[i]))) + (i == 1 and gone or 0)
        if used + need <= value then
          if gone then
            -- By the second, as far as the log knows.
            local from = (first + i - 1) * BUCKET[kind]
            local fields = seconds(name, from, from + BUCKET[kind] - 1)
            local some = read(fields)
            local skipped = i == 1 and gone or 0
            for j = 1, #some do
              local amount = (select(metric, numbers(some[j])))
              if skipped > 0 then skipped = skipped - amount else before = before - amount end
              if before + need <= value then
                return tonumber(string.match(fields[j], '(%d+)$')) + SPAN[kind] * BUCKET[kind]
              end
            end
          end
          return (first + i - 1 + SPAN[kind] + 1) * BUCKET[kind]
        end
      end
    end
    return (at + SPAN[kind] + 1) * BUCKET[kind]
  end

  -- The same for requests per minute.
  function rate_free_at(r, value)
    if value < 1 then return -1 end
    local left, older = r[11] + r[12], {}
    for word in string.gmatch(r[13], '%S+') do older[#older + 1] = tonumber(word) end
    for i = 6, 1, -1 do
      left = left - older[i]
      if left + 1 <= value then return (r[10] - i + 7) * 10 end
    end
    return (r[10] + 7) * 10
  end

  -- One HSET of `puts` (field, value, ...) and the waiting cells; one HDEL of the cells to drop.
  function write(puts)
    for field, value in pairs(cells) do
      puts[#puts + 1] = field
      puts[#puts + 1] = value
    end
    for i = 1, #puts, 4000 do call('HSET', KEYS[1], unpack(puts, i, min(i + 3999, #puts))) end
    for i = 1, #drops, 4000 do call('HDEL', KEYS[1], unpack(drops, i, min(i + 3999, #drops))) end
    for i = 1, #logged do call('ZADD', KEYS[7], 0, logged[i]) end
    cells, drops, logged = {}, {}, {}
  end
end
