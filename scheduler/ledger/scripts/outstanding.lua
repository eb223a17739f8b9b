-- outstanding reads the records of outstanding runs.
-- ARGV: 1 bytes of arguments at most  2... runs
-- Replies: per run, until the reply is long enough: record, attempts, arguments; '' for arguments
--   that are longer, or that are stored with a long definition, and for everything of a run that is
--   not outstanding
-- BYTES bounds how long a call keeps Redis busy. A body that is longer than BODY_MOST is not read
-- at all.
local BYTES, BODY_MOST = 256 * 1024, 16 * 1024
local out, bytes = {}, 0
for i = 2, #ARGV do
  local id = ARGV[i]
  local record, log, args = call('HGET', RUN, id) or '', call('HGET', LOG, id) or '', ''
  if call('HSTRLEN', BODY, id) <= BODY_MOST then
    local body = call('HGET', BODY, id) or ''
    local stop = string.find(body, US, 1, true) or #body + 1
    if stop - 1 <= tonumber(ARGV[1]) then args = sub(body, 1, stop - 1) end
    bytes = bytes + #body
  end
  local k = #out
  out[k + 1], out[k + 2], out[k + 3] = record, log, args
  bytes = bytes + #id + #record + #log
  if bytes >= BYTES then break end
end
return out
