-- needs: clock
-- Takes the organization off the dirty list if its stream is empty, in one step with the look: an event that comes between
-- a reader's look and its SREM would wait for the next one. OK 0/1
if call('XLEN', KEYS[3]) > 0 then return {'OK', now, 0} end
call('SREM', KEYS[5], (string.match(KEYS[1], ':(%d+):q$')))
return {'OK', now, 1}
