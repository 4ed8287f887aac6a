-- needs: clock records
-- ARGV: time, view. Writes nothing.
-- OK epoch second {funding: start quota allowed cap used held reserved purchased overage overdraft} {granted spent reserved}
--    then per record {live, held c, held t, requests of the minute, period c t r,
--    then code c t r each} | STALE version | ROLL second | COLD
local view = {values(ARGV[2])}
local version, day, from, till, period, source, start, quota, allowed, cap, count = unpack(view, 1, 11)
local fields = {'$', 'f:' .. source, 'p:' .. source}
local at = 12
for i = 1, count do
  fields[3 + i] = view[at]
  at = at + 3 + view[at + 2]
  at = at + 1 + 3 * view[at]
end
local got = call('HMGET', KEYS[1], unpack(fields))
if not got[1] then return {'COLD', now} end
local epoch, newest_version, _, spent, reserved, granted = values(got[1])
if version < newest_version then return {'STALE', now, newest_version} end
local s = floor(now / 1000)
if got[4] then
  local _, _, newest = cmsgpack.unpack_limit(got[4], 2)
  if newest > s then s = newest end
end
if s < from or s >= till then return {'ROLL', now, s} end
local funding = {start, quota, allowed, cap, 0, 0, 0, 0, 0, 0}
for i = 2, 3 do
  local e = got[i] and {values(got[i])}
  if e and e[1] == start then
    for j = 5, 10 do funding[j] = e[j] end
  end
end
local answer = {'OK', now, epoch, s, funding, {granted, spent, reserved}}
make_records()
local fine, slot = floor(s / 300), floor(s / 10)
at = 12
for i = 1, count do
  local name, signature, codes = view[at], view[at + 1], view[at + 2]
  local wanted = {unpack(view, at + 3, at + 2 + codes)}
  at = at + 4 + codes + 3 * view[at + 3 + codes]
  local raw = got[3 + i]
  local state
  if raw then
    local r = {values(raw)}
    shift(r, slot)
    roll(name, r, fine, day, period, wanted, signature)
    local w = {values(r[15])}
    state = {r[1], r[8], r[9], r[11] + r[12], w[1] + r[5], w[2] + r[6], w[3] + r[7]}
    for p = 4, #w, 4 do
      local e = #state
      state[e + 1], state[e + 2], state[e + 3], state[e + 4] = w[p], w[p + 1] + r[5], w[p + 2] + r[6], w[p + 3] + r[7]
    end
  else
    state = {0, 0, 0, 0, 0, 0, 0}
    for j = 1, #wanted do
      local e = #state
      state[e + 1], state[e + 2], state[e + 3], state[e + 4] = wanted[j], 0, 0, 0
    end
  end
  answer[#answer + 1] = state
end
return answer
