-- list reads one page of the index: holds and waits, of one session or of all.
-- ARGV: 1 from, as ZRANGEBYLEX wants it  2 to  3 limit
-- Replies: now (ms), then per entry: index member, record, ms of its session's lease left (0 for the space's own)
local out = {ms}
local members = call('ZRANGEBYLEX', IDX, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
for i = 1, #members do
  local session, kind, id = string.match(members[i], '^([^%z]*)%z(.)%z(.*)$')
  local left = ends(session)
  out[#out + 1] = members[i]
  out[#out + 1] = call('HGET', kind == 'h' and HOLD or WAIT, id) or ''
  out[#out + 1] = format('%.0f', left and left - now or 0)
end
return out
