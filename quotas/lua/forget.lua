-- needs: clock records
-- ARGV: time, before (second), record names
-- OK dropped | COLD
--
-- Drops records whose scope is gone, with their cells: those that nothing was counted in since `before` and in which no hold lives.
-- A record that is missing means zero, and what is older than every window counts nowhere.
local before = tonumber(ARGV[2])
if not before then return redis.error_reply('ERR forget: no time') end
if call('HEXISTS', KEYS[1], '$') == 0 then return {'COLD', now} end
make_records()
local dropped = 0
for i = 3, #ARGV do
  local name = ARGV[i]
  local raw = call('HGET', KEYS[1], name)
  local r = raw and {values(raw)}
  if name ~= 'o' and r and r[1] == 0 and r[2] < before then
    drop(name, '|f', r[3] - KEEP_FINE, r[3])
    drop(name, '|c', floor(r[3] / 36) - KEEP_COARSE, floor(r[3] / 36))
    drop(name, '|d', r[4] - KEEP_DAYS, r[4])
    local log = has_log(r[16]) and seconds(name, '', '9') or {}
    for j = 1, #log do
      drops[#drops + 1] = log[j]
      call('ZREM', KEYS[7], log[j])
    end
    drops[#drops + 1] = name
    dropped = dropped + 1
  end
end
write({})
return {'OK', now, dropped}
