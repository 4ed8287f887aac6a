-- A session goes back to its home, from an account that could not serve it; not if it has moved on since. Needs holds.lua.
--
-- KEYS  1 entry of the session
-- ARGV  1 account that could not · 2 home · 3 when the session was served before, ms · 4 seconds that the entry lives
local text = redis.call('GET', KEYS[1])
local e = entry_of(text)
local last = e.stand_in > 0 and e.stand_in or e.home
if last ~= tonumber(ARGV[1]) then
  return 0
end
e.served = tonumber(ARGV[3])
redis.call('SET', KEYS[1], entry_text(ARGV[2] .. ':0:0', e), 'EX', ARGV[4])
return 1
