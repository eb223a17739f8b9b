-- outstanding reads one page of the runs that are not finished, by job and tick.
-- ARGV: 1 from, as ZRANGEBYLEX wants it  2 to  3 limit  4 bytes of arguments at most
-- Replies: now (ms), from where the next page begins ('' after the last one), then per run: index member, id, record,
-- attempts, arguments; '' for arguments that are longer, or that a long definition is stored with
-- BYTES bounds how long a page keeps Redis busy. A body that is longer than BODY_MOST is not read at all.
local BYTES, BODY_MOST = 256 * 1024, 16 * 1024
local out, bytes, limit = {ms, ''}, 0, tonumber(ARGV[3])
local members = call('ZRANGEBYLEX', OPEN, ARGV[1], ARGV[2], 'LIMIT', 0, limit)
for i = 1, #members do
  local id = string.match(members[i], '([^%z]*)$')
  local record, log, args = call('HGET', RUN, id) or '', call('HGET', LOG, id) or '', ''
  if call('HSTRLEN', BODY, id) <= BODY_MOST then
    local body = call('HGET', BODY, id) or ''
    local stop = string.find(body, US, 1, true) or #body + 1
    if stop - 1 <= tonumber(ARGV[4]) then args = sub(body, 1, stop - 1) end
    bytes = bytes + #body
  end
  local k = #out
  out[k + 1], out[k + 2], out[k + 3], out[k + 4], out[k + 5] = members[i], id, record, log, args
  bytes = bytes + #members[i] + #record + #log
  if bytes >= BYTES or i == limit then
    out[2] = '(' .. members[i]
    break
  end
end
return out
