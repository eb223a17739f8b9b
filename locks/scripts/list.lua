-- list reads one page of holds or of waits, of one session or of all.
-- ARGV: 1 h or w  2 from, as ZRANGEBYLEX wants it  3 to  4 limit
-- Replies: now (ms), then per entry: index member, record (of a wait), ms left: of its session's lease, or of the rest
-- of a hold that rests; 0 for waits of the space
local out = {ms}
local members = call('ZRANGEBYLEX', ARGV[1] == 'h' and HOLD or IDX, ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])
for i = 1, #members do
  local session, id, left = string.match(members[i], '^([^%z]*)%z([^\31]*)'), '', nil
  if ARGV[1] == 'h' then
    id = string.match(members[i], '^[^%z]*%z([^\31]*)')
  else
    id = string.match(members[i], '^[^%z]*%z.%z(.*)$')
  end
  if session == '@' then
    left = ARGV[1] == 'h' and tonumber(call('ZSCORE', EXP, 'd' .. id))
  else
    left = ends(session)
  end
  out[#out + 1] = members[i]
  out[#out + 1] = ARGV[1] == 'w' and call('HGET', WAIT, id) or ''
  out[#out + 1] = format('%.0f', left and math.max(0, left - now) or 0)
end
return out
