-- holders reads who has one resource, and how.
-- ARGV: 1 name  2 limit
-- Replies: now (ms), what occupies it ('' for nothing), then per hold: its member in the key hold, ms left, as list says
local name = ARGV[1]
local owner = call('HGET', OWN, name) or ''
local out, kind, from = {ms, owner}, sub(owner, 1, 1), '~r' .. name .. '\0x'
local ids = {}
if kind == 'x' or kind == 'u' then ids[1] = sub(owner, 2) end
if kind == 's' or kind == 'p' or kind == 'u' then
  local members = call('ZRANGEBYLEX', IDX, '[' .. from, '(' .. from .. '\255', 'LIMIT', 0, ARGV[2])
  for i = 1, #members do ids[#ids + 1] = sub(members[i], #from + 1) end
end
for i = 1, #ids do
  local hold, member = held(ids[i])
  local left = hold[1] == '@' and tonumber(call('ZSCORE', EXP, 'd' .. ids[i])) or ends(hold[1]) or now
  out[#out + 1] = member
  out[#out + 1] = format('%.0f', math.max(0, left - now))
end
return out
