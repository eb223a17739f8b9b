-- outstanding reads one page of the runs that are not finished, by job and tick.
-- ARGV: 1 from, as ZRANGEBYLEX wants it  2 to  3 limit
-- Replies: now (ms), then per run: index member, id, record, attempts, arguments
local out = {ms}
local members = call('ZRANGEBYLEX', OPEN, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
for i = 1, #members do
  local id = string.match(members[i], '([^%z]*)$')
  local k = #out
  out[k + 1], out[k + 2], out[k + 3] = members[i], id, call('HGET', RUN, id)
  out[k + 4] = call('HGET', LOG, id) or ''
  out[k + 5] = string.match(call('HGET', BODY, id) or '', '^([^\31]*)')
end
return out
