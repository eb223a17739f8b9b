-- find reads one run, outstanding or finished.
-- ARGV: 1 run
-- Replies: open, record, attempts, arguments | done, final record with attempts and arguments, output | none
local id = ARGV[1]
local record = call('HGET', RUN, id)
if record then
  return {'open', record, call('HGET', LOG, id) or '', args_of(call('HGET', BODY, id) or ''),
    call('HGET', OUTPUT, id) or ''}
end
record = call('HGET', HIST, id)
if not record then return {'none'} end
return {'done', record, call('HGET', OUTPUT, id) or ''}
