-- needs: clock
-- ARGV: time, version or '', grant version or '', granted in all
-- OK version | COLD
local raw = call('HGET', KEYS[1], '$')
if not raw then return {'COLD', now} end
local meta = {values(raw)}
if ARGV[2] ~= '' then meta[2] = max(meta[2], tonumber(ARGV[2])) end
-- Absolute and monotone: repeats and reorderings do no harm.
if ARGV[3] ~= '' and tonumber(ARGV[3]) > meta[7] then meta[6], meta[7] = tonumber(ARGV[4]), tonumber(ARGV[3]) end
local packed = pack(unpack(meta))
if packed ~= raw then call('HSET', KEYS[1], '$', packed) end
return {'OK', now, meta[2]}
