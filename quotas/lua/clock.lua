-- Part of every script: the time. ARGV[1] is '' (the server's clock) or milliseconds, in tests only.
local call, pack, values = redis.call, cmsgpack.pack, cmsgpack.unpack
local floor, max, min = math.floor, math.max, math.min
local now
if ARGV[1] == '' then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
  --@offset
else
  now = tonumber(ARGV[1])
end
if not now then return redis.error_reply('ERR time must be milliseconds or empty') end
-- Sums stay far below 2^53, where doubles stop being exact: no single amount may exceed an eighth of it.
local MOST = 1125899906842624
