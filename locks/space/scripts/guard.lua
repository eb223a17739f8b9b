-- The guard: the check that comes first in a script. It refuses a space with data that this build
-- cannot read; doc.go explains the numbers ("Format"). FORMAT is the layout that this build writes,
-- LEAST the oldest one that it reads. WRITTEN is the layout that the space is written in now,
-- OLDEST the oldest one that its data may still have. Both are false in a space without a number:
-- that has format 1, unless its keys show that it is older. The refusal names the version of the
-- build that began to write the format, if that is known.
local WRITTEN, OLDEST = unpack(call('HMGET', META, 'format', 'least_format'))
if tonumber(WRITTEN or '') ~= FORMAT or (tonumber(OLDEST) or 0) < LEAST then
  local n, oldest, fault = tonumber(WRITTEN or '1'), tonumber(OLDEST or WRITTEN or '1') or 0, nil
  if not n or n > FORMAT or oldest < LEAST then
    fault = (WRITTEN or '1') .. ' ' .. format('%d', oldest) .. ' ' .. (call('HGET', META, 'format_by') or '')
  elseif not WRITTEN then
    local types = {KEY_TYPES}
    for i = 1, #types do
      local is = call('TYPE', KEYS[i]).ok
      if is ~= 'none' and is ~= types[i] then fault = '0 0 ' .. KEYS[i] .. ' is a ' .. is .. ', not a ' .. types[i] end
    end
    local first = not fault and call('HEXISTS', META, 'id') == 0 and call('ZRANGE', EXP, 0, 9) or {}
    for i = 1, #first do
      local session = sub(first[i], 2)
      if sub(first[i], 1, 1) == 's' and call('HEXISTS', META, 'card:' .. session) == 1 and
        call('HEXISTS', META, 'at:' .. session) == 0 then
        fault = '0 0 ' .. META .. ' has no lease of session ' .. session
      end
    end
  end
  if fault then return redis.error_reply('LOCKSTEPFORMAT ' .. fault) end
end
