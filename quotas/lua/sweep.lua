-- needs: clock records holds
-- ARGV: time, at most n
-- OK orphaned, tombstones dropped, more due (0/1) | COLD
local most = tonumber(ARGV[2])
if not (most >= 1) then return redis.error_reply('ERR sweep: nothing to do') end
local raw = call('HGET', KEYS[1], '$')
if not raw then return {'COLD', now} end
make_holds()
keep(raw)
local due = call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, most + 1)
local orphaned, dropped = 0, 0
for i = 1, min(#due, most) do
  local id = due[i]
  local held = call('HGET', KEYS[1], 'h:' .. id)
  local h = held and {values(held)}
  if h and h[1] == 'L' then
    local about, c, t = h[14], h[12], h[13]
    load(h, call('HMGET', KEYS[1], unpack(places(h, {}))), 1)
    finish(h, 'O', c, t)
    save(id, h)
    call('ZADD', KEYS[2], h[19] + KEEP, id)
    emit(id, 0, 'O', h, c, t, 1, h[15], h[16], h[17], h[18], h[19], 'ORPHANED', about)
    orphaned = orphaned + 1
  else
    call('HDEL', KEYS[1], 'h:' .. id)
    call('ZREM', KEYS[2], id)
    dropped = dropped + 1
  end
end
if dropped > 0 then
  -- From now on an unknown hold whose newest ack is KEEP older than this may have ended.
  meta[3] = max(now, meta[3])
  call('HSET', KEYS[1], '$', pack(unpack(meta)))
end
if call('ZCARD', KEYS[2]) == 0 then call('SREM', KEYS[6], (string.match(KEYS[1], ':(%d+):q$'))) end
return {'OK', now, orphaned, dropped, #due > most and 1 or 0}
