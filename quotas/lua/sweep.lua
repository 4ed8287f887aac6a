-- needs: clock records holds
-- ARGV: time, at most n
-- OK orphaned, tombstones dropped, more due (0/1) | COLD
local most = tonumber(ARGV[2])
if not (most >= 1) then return redis.error_reply('ERR sweep: nothing to do') end
local raw = redis.call('HGET', KEYS[1], '$')
if not raw then return {'COLD', now} end
keep(raw)
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, most + 1)
local orphaned, dropped = 0, 0
for i = 1, min(#due, most) do
  local id = due[i]
  local held = redis.call('HGET', KEYS[1], 'h:' .. id)
  local h = held and {cmsgpack.unpack(held)}
  if h and h[1] == 'L' then
    local about, c, t = h[14], h[12], h[13]
    load(h, redis.call('HMGET', KEYS[1], unpack(places(h, {}))), 1)
    finish(h, 'O', c, t)
    save(id, h)
    redis.call('ZADD', KEYS[2], h[19] + KEEP, id)
    emit(id, 0, 'O', h, c, t, 1, h[15], h[16], h[17], h[18], h[19], 'ORPHANED', about)
    orphaned = orphaned + 1
  else
    redis.call('HDEL', KEYS[1], 'h:' .. id)
    redis.call('ZREM', KEYS[2], id)
    dropped = dropped + 1
  end
end
if dropped > 0 then
  -- From now on an unknown hold whose newest ack is KEEP older than this may have ended.
  meta[3] = max(now, meta[3])
  redis.call('HSET', KEYS[1], '$', cmsgpack.pack(unpack(meta)))
end
if redis.call('ZCARD', KEYS[2]) == 0 then redis.call('SREM', KEYS[6], (string.match(KEYS[1], ':(%d+):q$'))) end
return {'OK', now, orphaned, dropped, #due > most and 1 or 0}
