-- Stores windows that an upstream reported. The newest observation wins, in whatever order they arrive; a reset that moved is
-- believed; a fall within one window (a jump back) is believed at the second sample in a row.
--
-- KEYS  1 live hash of the pool
-- ARGV  1 account id · 2 observed, ms · 3 '1' if the account has shown that it is not exhausted
--       then per window: minutes, percent used, reset (unix seconds, 0: unknown)
-- Returns how many windows were stored.
local account, observed = ARGV[1], tonumber(ARGV[2])
local field = account .. ':w'
local metered = redis.call('HGET', KEYS[1], account .. ':m') or '0'
local order, windows, stored, changed = {}, {}, 0, false
for minutes, value in string.gmatch(redis.call('HGET', KEYS[1], field) or '', '(%d+)=([^;]+)') do
  order[#order + 1] = minutes
  windows[minutes] = value
end

-- No account has as many. An endpoint of a tenant's own could name one of each length, which every request of its pool would read.
local MOST_WINDOWS = 8
-- Upstreams round and recompute resets; two that are this close, in seconds, are one.
local ALIKE = 120
local function is_alike(a, b)
  return a == 0 or b == 0 or math.abs(a - b) <= ALIKE
end

local OF_WINDOW = '^([^:]+):(%d+):(%d+):(%d+):(%d+):(%d+)$'
local reported = {}
for i = 4, #ARGV, 3 do
  local minutes, used, resets = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local start, is_believed = metered, true
  local was, reset, seen_at, seen, began, doubt = string.match(windows[minutes] or '', OF_WINDOW)
  reported[minutes] = true
  if not windows[minutes] then
    order[#order + 1] = minutes
  elseif was then
    local is_over = reset ~= '0' and tonumber(reset) * 1000 <= observed
    if observed < tonumber(seen_at) then
      is_believed = false
    elseif not is_over and is_alike(tonumber(resets), tonumber(reset)) then
      start = began
      if tonumber(used) < tonumber(was) and (doubt == '0' or observed <= tonumber(doubt)) then
        is_believed = false
        if doubt == '0' then
          windows[minutes] = table.concat({was, reset, seen_at, seen, began, ARGV[2]}, ':')
          changed = true
        end
      elseif resets == '0' then
        resets = reset
      end
    end
  end
  if is_believed then
    windows[minutes] = table.concat({used, resets, ARGV[2], metered, start, '0'}, ':')
    stored, changed = stored + 1, true
  end
end
if changed then
  local kept, parts = {}, {}
  for _, minutes in ipairs(order) do
    local _, reset = string.match(windows[minutes], OF_WINDOW)
    -- A window that has ended and is not reported any more is one that the account does not have any more.
    if reported[minutes] or (reset and (reset == '0' or tonumber(reset) * 1000 > observed)) then
      kept[#kept + 1] = minutes
    end
  end
  local beyond = #kept - MOST_WINDOWS
  for _, minutes in ipairs(kept) do
    if beyond > 0 and not reported[minutes] then
      beyond = beyond - 1
    else
      parts[#parts + 1] = minutes .. '=' .. windows[minutes]
    end
  end
  redis.call('HSET', KEYS[1], field, table.concat(parts, ';'))
end

-- A 429 said that it is exhausted. Room in a window of another reset lifts that at once; in the very window, at the second sample.
if ARGV[3] == '1' then
  local name = account .. ':x'
  local exhausted = redis.call('HGET', KEYS[1], name)
  if exhausted then
    local until_, told, doubt = string.match(exhausted, '^(%d+):(%d+):?(%d*)$')
    if observed > tonumber(told) then
      local is_same = false
      for i = 6, #ARGV, 3 do
        local resets = tonumber(ARGV[i])
        is_same = is_same or resets == 0 or is_alike(resets, tonumber(until_))
      end
      if not is_same or (doubt ~= '' and doubt ~= '0' and observed > tonumber(doubt)) then
        redis.call('HDEL', KEYS[1], name)
      elseif doubt == '' or doubt == '0' then
        redis.call('HSET', KEYS[1], name, until_ .. ':' .. told .. ':' .. ARGV[2])
      end
    end
  end
end
return stored
