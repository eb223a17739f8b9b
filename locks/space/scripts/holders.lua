-- holders reads one page of the holds of one resource, and its occupation.
-- ARGV: 1 name  2 where the page begins: '' for the first one, else as in the reply before  3 limit
-- Replies: now (ms), the resource's occupation ('' for none), where the next page begins ('' after
--   the last one), then per hold: its member in the key hold, ms left, as in list
-- A page of large bundles ends before its limit, as in list.
local BYTES = 256 * 1024
local name = ARGV[1]
local owner = call('HGET', OWN, name) or ''
local out, kind, mark = {ms, owner, ''}, sub(owner, 1, 1), '~r' .. name .. '\0x'
local ids, members, bytes = {}, {}, 0
if ARGV[2] == '' and (kind == 'x' or kind == 'u') then ids[1] = sub(owner, 2) end
if kind == 's' or kind == 'p' or kind == 'u' then
  local from = ARGV[2] == '' and '[' .. mark or '(' .. mark .. ARGV[2]
  members = call('ZRANGEBYLEX', IDX, from, '(' .. mark .. '\255', 'LIMIT', '0', ARGV[3])
  for i = 1, #members do ids[#ids + 1] = sub(members[i], #mark + 1) end
end
if #members == tonumber(ARGV[3]) then out[3] = ids[#ids] end
for i = 1, #ids do
  local hold, member = held(ids[i])
  local left = hold[H_SESSION] == '@' and tonumber(call('ZSCORE', EXP, 'd' .. ids[i])) or ends(hold[H_SESSION]) or now
  out[#out + 1] = member
  out[#out + 1] = format('%.0f', math.max(0, left - now))
  bytes = bytes + #member
  -- Not after the hold above the shares: its ID is not among the marks at which the next page
  -- begins.
  if bytes >= BYTES and i < #ids and i > #ids - #members then
    out[3] = ids[i]
    break
  end
end
return out
