-- needs: clock records holds
-- ARGV: time, expected epoch ('' none), last stream id folded in, keep holds (0/1), then id and tombstone end (ms) of requests
-- that ended lately. KEYS[4] holds the new counters, complete but for live holds, KEYS[8] the names of their seconds if they have any.
-- OK | RETRY last id | LOST
local expected, folded, keeps = ARGV[2], ARGV[3], ARGV[4] == '1'
local old = call('HGET', KEYS[1], '$')
local epoch = old and string.format('%d', (values(old))) or ''
if epoch ~= expected then return {'LOST', now} end
local last = '0-0'
if call('EXISTS', KEYS[3]) == 1 then
  local info = call('XINFO', 'STREAM', KEYS[3])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
  end
end
if last ~= folded then return {'RETRY', now, last} end
local fresh = call('HGET', KEYS[4], '$')
if not fresh then return redis.error_reply('ERR rebuild: nothing is staged') end

local holds = {}
if keeps then
  local ids = call('ZRANGE', KEYS[2], 0, -1)
  for i = 1, #ids do
    local raw = call('HGET', KEYS[1], 'h:' .. ids[i])
    if raw then holds[#holds + 1] = {ids[i], raw} end
  end
else
  call('DEL', KEYS[2])
end
call('RENAME', KEYS[4], KEYS[1])
if call('EXISTS', KEYS[8]) == 1 then call('RENAME', KEYS[8], KEYS[7]) else call('DEL', KEYS[7]) end
make_holds()
keep(fresh)
meta[3] = now
for i = 1, #holds do
  local id, raw = holds[i][1], holds[i][2]
  if call('HEXISTS', KEYS[1], 'h:' .. id) == 0 then
    local h = {values(raw)}
    if h[1] == 'L' then
      load(h, call('HMGET', KEYS[1], unpack(places(h, {}))), 1)
      count(h)
      save(id, h)
    else
      call('HSET', KEYS[1], 'h:' .. id, raw)
    end
  end
end
call('HSET', KEYS[1], '$', pack(unpack(meta)))
for i = 5, #ARGV - 1, 2 do call('ZADD', KEYS[2], 'NX', ARGV[i + 1], ARGV[i]) end
if call('ZCARD', KEYS[2]) > 0 then call('SADD', KEYS[6], (string.match(KEYS[1], ':(%d+):q$'))) end
return {'OK', now}
