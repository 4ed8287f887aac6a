-- needs: clock records holds
-- ARGV: time, epoch, repair id, deltas (flat): 'c' record tag(f c d s) at c t n | 't' record period-code c t n
--       | 'f' source start plan purchased overage overdraft | 's' purchased spent
-- OK | DUP | LOST | COLD
--
-- Adds what the reconciler found missing (or too much: amounts may be negative) to cells, totals and funding. Additions commute with
-- traffic. The windows are dropped, so that the next admission sums them from the cells. What is not there is made: left out,
-- a later admission would make it empty, and the difference would stay.
local epoch, repair = tonumber(ARGV[2]), ARGV[3]
if not epoch or repair == '' then return redis.error_reply('ERR adjust: no epoch or no repair id') end
local raw = call('HMGET', KEYS[1], '$', '$r', 'o')
if not raw[1] then return {'COLD', now} end
make_holds()
keep(raw[1])
if meta[1] ~= epoch then return {'LOST', now} end
local done = raw[2] and {values(raw[2])} or {}
for i = 1, #done do
  if done[i] == repair then return {'DUP', now} end
end

local deltas = {values(ARGV[4])}
local WIDTH = {c = 7, t = 6, f = 7, s = 2}
-- Where a record that is missing begins: beside the organization's, and never behind what it is given.
local second, day, period = floor(now / 1000), 0, 0
if raw[3] then
  local o = {values(raw[3])}
  second, day, period = max(second, o[2]), o[4], o[14]
end
local wanted, sources, at = {}, {}, 1
while at <= #deltas do
  local kind = deltas[at]
  local width = WIDTH[kind]
  if not width or at + width - 1 > #deltas then return redis.error_reply('ERR adjust: not a list of deltas') end
  local name = deltas[at + 1]
  if kind == 'c' or kind == 't' then
    if not wanted[name] then wanted[name], wanted[#wanted + 1] = {}, name end
    table.insert(wanted[name], at)
    if deltas[at + 2] == 's' then wanted[name].logs = true end
    if kind == 'c' and deltas[at + 2] == 'd' then day = max(day, deltas[at + 3]) end
  elseif kind == 'f' then
    if not sources[name] then sources[name], sources[#sources + 1] = {}, name end
    table.insert(sources[name], at)
  else
    -- Before any entry is fitted: what is free of the purchased credits depends on it.
    meta[4] = meta[4] + name
  end
  at = at + width
end

local puts = {}
local function put(field, value) puts[#puts + 1], puts[#puts + 2] = field, value end
local newest = 0
for i = 1, #wanted do
  local name = wanted[i]
  local old = call('HGET', KEYS[1], name)
  local r = old and {values(old)} or {
    0, second, floor(second / 300), day, 0, 0, 0, 0, 0, floor(second / 10), 0, 0, '0 0 0 0 0 0', period, pack(0, 0, 0), '', 0}
  local fields, amounts = {}, {}
  for _, p in ipairs(wanted[name]) do
    if deltas[p] == 't' then
      local code = deltas[p + 2]
      if code > r[14] then roll(name, r, r[3], r[4], code) end
      if code == r[14] then
        local w = {values(r[15])}
        w[1], w[2], w[3] = w[1] + deltas[p + 3], w[2] + deltas[p + 4], w[3] + deltas[p + 5]
        r[15] = pack(unpack(w))
      end
    else
      local tag, cell = deltas[p + 2], deltas[p + 3]
      local bucket = tag == 'f' and cell or tag == 'c' and cell * 36 or r[3]
      if bucket > r[3] then
        -- Newer than its record (failover): advance first, or a roll would never subtract it.
        roll(name, r, bucket, r[4], r[14])
        r[2] = max(r[2], bucket * 300)
        newest = max(newest, r[2])
      end
      local kept = tag == 'f' and cell >= r[3] - KEEP_FINE or tag == 'c' and cell >= floor(r[3] / 36) - KEEP_COARSE
        or tag == 'd' and cell >= r[4] - KEEP_DAYS or tag == 's'
      if kept then
        fields[#fields + 1] = name .. '|' .. tag .. cell
        amounts[#amounts + 1] = p + 4
      end
    end
  end
  -- Also into the cells of the open bucket: closing it adds to what they hold.
  local had = read(fields)
  for j = 1, #fields do
    local p = amounts[j]
    local c, t, n = numbers(cells[fields[j]] or had[j])
    cells[fields[j]] = text(c + deltas[p], t + deltas[p + 1], n + deltas[p + 2])
    if deltas[p - 2] == 's' and not had[j] then logged[#logged + 1] = fields[j] end
  end
  local w = {values(r[15])}
  r[15], r[16] = pack(w[1], w[2], w[3]), (wanted[name].logs or has_log(r[16])) and 'L' or ''
  put(name, pack(unpack(r)))
end

for i = 1, #sources do
  local source = sources[i]
  local got = call('HMGET', KEYS[1], 'f:' .. source, 'p:' .. source)
  current, previous = got[1] and {values(got[1])}, got[2] and {values(got[2])}
  local touched = {}
  for _, p in ipairs(sources[source]) do
    local e = entry(deltas[p + 2])
    e[5], e[8], e[9], e[10] = e[5] + deltas[p + 3], e[8] + deltas[p + 4], e[9] + deltas[p + 5], e[10] + deltas[p + 6]
    touched[#touched + 1] = e
  end
  for j = 1, #touched do refit(touched[j]) end
  if current then put('f:' .. source, pack(unpack(current))) end
  if previous then put('p:' .. source, pack(unpack(previous))) end
end

put('$', pack(unpack(meta)))
-- The newest ids are enough: a repair is repeated at once or compared anew.
while #done > 63 do table.remove(done, 1) end
done[#done + 1] = repair
put('$r', pack(unpack(done)))
write(puts)
if newest > 0 then
  -- Time is told by the organization's newest second: no record may be ahead of it.
  local o = call('HGET', KEYS[1], 'o')
  local r = o and {values(o)}
  if r and r[2] < newest then
    r[2] = newest
    call('HSET', KEYS[1], 'o', pack(unpack(r)))
  end
end
return {'OK', now}
