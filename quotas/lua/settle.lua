-- needs: clock records holds
-- ARGV: time, id, S or R, c, t, ack, ticket, event body, quota, purchased allowed, cap (or three '')
-- OK / LATE / AMENDED plan purchased overage overdraft | DUP state c plan purchased overage overdraft | LOGGED | GONE
local id, state, c, t, ack, body = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[8]
local quota, allowed, cap = ARGV[9], ARGV[10], ARGV[11]
if not (id ~= '' and (state == 'S' or state == 'R') and c >= 0 and t >= 0 and c <= MOST and t <= MOST) then
  return redis.error_reply('ERR settle: a wrong state, or an amount is negative or too large')
end
if not (quota == '' or (tonumber(quota) >= 0 and tonumber(allowed) and tonumber(cap) >= 0)) then
  return redis.error_reply('ERR settle: wrong terms')
end
if state == 'R' then c, t = 0, 0 end
local h = {}
if ARGV[7] ~= '' then
  h = {values(ARGV[7])}
  if #h < 20 then return redis.error_reply('ERR settle: not a ticket') end
end
-- What `places` names, without making it yet.
local fields = {'$', 'h:' .. id}
if h[1] then
  fields[3], fields[4] = 'f:' .. h[6], 'p:' .. h[6]
  for i = 20, #h do fields[i - 15] = h[i] end
end
local got = call('HMGET', KEYS[1], unpack(fields))
local found = got[1] and got[2] and {values(got[2])}
if found and (found[1] == 'S' or found[1] == 'R') then
  return {'DUP', now, found[1], found[10], found[15], found[16], found[17], found[18]}
end
make_holds()

local function logged()
  if state == 'R' then return {'GONE', now} end
  if not h[1] then return redis.error_reply('ERR settle: an unknown hold needs its ticket') end
  -- Which of the funds pays is unknown without counters; the drain decides.
  emit(id, 0, 'S', h, c, t, 1, c, 0, 0, 0, max(now, h[19]), 'LOGGED', body)
  return {'LOGGED', now}
end

if not got[1] then return logged() end
keep(got[1])
if found then
  local same = #found == #h and found[6] == h[6]
  for i = 20, #found do same = same and found[i] == h[i] end
  h = found
  if same then
    load(h, got, 3)
  else
    load(h, call('HMGET', KEYS[1], unpack(places(h, {}))), 1)
  end
  if h[1] == 'L' then
    finish(h, state, c, t, quota, allowed, cap)
    save(id, h)
    call('ZADD', KEYS[2], h[19] + KEEP, id)
    if state == 'S' then emit(id, 0, 'S', h, c, t, 1, h[15], h[16], h[17], h[18], h[19], 'OK', body) end
    return {'OK', now, h[15], h[16], h[17], h[18]}
  end
  -- The sweeper was first: take its split back, book the real one; once.
  local was_c, was_t, plan, purchased, overage, overdraft = h[10], h[11], h[15], h[16], h[17], h[18]
  local n = state == 'R' and -1 or 0
  local e, name = entry(h[7]), rolling and h[#h]
  set_terms(e, quota, allowed, cap)
  e[5], e[8], e[9], e[10] = e[5] - plan, e[8] - purchased, e[9] - overage, e[10] - overdraft
  meta[4] = meta[4] - purchased
  h[15], h[16], h[17], h[18] = split(e, c, name, plan)
  for i = 1, #records do
    add(h[19 + i], records[i], h, i == rolling and h[15] - plan or c - was_c, t - was_t, n)
  end
  refit(e, name)
  h[1], h[10], h[11], h[19] = 'S', c, t, max(now, h[19])
  save(id, h)
  call('ZADD', KEYS[2], h[19] + KEEP, id)
  emit(id, 1, 'S', h, c - was_c, t - was_t, n, h[15] - plan, h[16] - purchased, h[17] - overage, h[18] - overdraft, h[19],
    'AMENDED', body)
  return {'AMENDED', now, h[15], h[16], h[17], h[18]}
end

-- Not known here. An id that never got an answer has no ack: it is younger than any tombstone that was dropped.
if ack ~= '' and meta[3] - tonumber(ack) >= KEEP then return logged() end
if state == 'R' then
  -- The tombstone stops an admit that is still on its way.
  local s = floor(now / 1000)
  local stone = {'R', s, floor(s / 300), 0, 0, '', 0, 0, 0, 0, 0, 0, 0, '', 0, 0, 0, 0, max(now, h[19] or 0)}
  records = {}
  save(id, stone)
  call('ZADD', KEYS[2], stone[19] + KEEP, id)
  call('SADD', KEYS[6], (string.match(KEYS[1], ':(%d+):q$')))
  return {'LATE', now, 0, 0, 0, 0}
end
if not h[1] then return redis.error_reply('ERR settle: an unknown hold needs its ticket') end
load(h, got, 3)
local e, name = entry(h[7]), rolling and h[#h]
set_terms(e, quota, allowed, cap)
h[15], h[16], h[17], h[18] = split(e, c, name)
for i = 1, #records do add(h[19 + i], records[i], h, i == rolling and h[15] or c, t, 1) end
refit(e, name)
h[1], h[10], h[11], h[14], h[19] = 'S', c, t, '', max(now, h[19])
save(id, h)
call('ZADD', KEYS[2], h[19] + KEEP, id)
call('SADD', KEYS[6], (string.match(KEYS[1], ':(%d+):q$')))
emit(id, 0, 'S', h, c, t, 1, h[15], h[16], h[17], h[18], h[19], 'LATE', body)
return {'LATE', now, h[15], h[16], h[17], h[18]}
