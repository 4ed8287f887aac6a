-- needs: clock records holds
-- ARGV: time, id, observed_c, observed_t, lease_ms, ack, ticket
-- OK | RESTORED | ORPHANED | ENDED state | UNKNOWN | COLD
local id, seen_c, seen_t, lease = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if not (id ~= '' and seen_c >= 0 and seen_t >= 0 and seen_c <= MOST and seen_t <= MOST and lease >= 0) then
  return redis.error_reply('ERR renew: an amount is negative or too large')
end
local got = call('HMGET', KEYS[1], '$', 'h:' .. id)
if not got[1] then return {'COLD', now} end
local answer, h
if got[2] then
  h = {values(got[2])}
  if h[1] == 'O' then
    -- Booked already; its tombstone stays as long as somebody renews, so that the settlement finds it.
    h[19] = max(now, h[19])
    call('HSET', KEYS[1], 'h:' .. id, pack(unpack(h)))
    call('ZADD', KEYS[2], 'GT', h[19] + KEEP, id)
    return {'ORPHANED', now}
  end
  if h[1] ~= 'L' then return {'ENDED', now, h[1]} end
  h[12], h[13], h[19] = max(h[12], seen_c), max(h[13], seen_t), max(now, h[19])
  local more_c, more_t = max(h[8], h[12]) - h[10], max(h[9], h[13]) - h[11]
  if more_c == 0 and more_t == 0 then
    call('HSET', KEYS[1], 'h:' .. id, pack(unpack(h)))
  else
    -- A growing hold may pass a limit: a running answer is not cut, the next admission is refused.
    make_holds()
    keep(got[1])
    load(h, call('HMGET', KEYS[1], unpack(places(h, {}))), 1)
    for i = 1, #records do
      local r = records[i]
      add(h[19 + i], r, h, more_c, more_t, 0)
      r[8], r[9] = r[8] + more_c, r[9] + more_t
    end
    h[10], h[11] = h[10] + more_c, h[11] + more_t
    local e = entry(h[7])
    e[6] = e[6] + more_c
    refit(e, rolling and h[#h])
    save(id, h)
  end
  answer = 'OK'
else
  -- It may have ended only if its tombstone was dropped. The sweep mark tells, not the age of the ack: clocks step.
  make_holds()
  keep(got[1])
  if meta[3] - tonumber(ARGV[6]) >= KEEP then return {'UNKNOWN', now} end
  h = {values(ARGV[7])}
  if h[1] ~= 'L' or #h < 20 then return redis.error_reply('ERR renew: not a ticket') end
  h[12], h[13], h[19] = max(h[12], seen_c), max(h[13], seen_t), max(now, h[19])
  h[10], h[11] = max(h[8], h[12]), max(h[9], h[13])
  load(h, call('HMGET', KEYS[1], unpack(places(h, {}))), 1)
  count(h)
  save(id, h)
  call('SADD', KEYS[6], (string.match(KEYS[1], ':(%d+):q$')))
  answer = 'RESTORED'
end
call('ZADD', KEYS[2], now + lease, id)
return {answer, now}
