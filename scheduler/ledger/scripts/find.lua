-- find reads one run, outstanding or finished.
-- ARGV: 1 run
-- Replies: open, record, attempts, arguments | done, final record with attempts and arguments,
--   output | none
local id = ARGV[1]
local record = call('HGET', RUN, id)
if record then
  -- Outputs may have the wrong type; some runs are parked because of that, and must still be found.
  local output = redis.pcall('HGET', OUTPUT, id)
  return {'open', record, call('HGET', LOG, id) or '', (apart(call('HGET', BODY, id) or '')),
    type(output) == 'string' and output or ''}
end
record = call('HGET', HIST, id)
if not record then return {'none'} end
return {'done', record, call('HGET', OUTPUT, id) or ''}
