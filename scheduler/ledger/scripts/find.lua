-- find reads one run, outstanding or finished, and the output of one of its attempts.
-- ARGV: 1 run  2 number of the attempt; "": the last one that has printed something; "0": none
-- Replies: open, record, attempts, arguments, output, number of its attempt | done, final record
--   with attempts and arguments, output, number of its attempt | none
local id = ARGV[1]
local function output(run)
  if ARGV[2] == '0' then return '', '0' end
  -- Outputs may have the wrong type; some runs are parked because of that, and must still be found.
  local value = redis.pcall('HGET', OUTPUT, id)
  return outputOf(fields(run or ''), type(value) == 'string' and value or '', ARGV[2])
end
local record = call('HGET', RUN, id)
if record then return {'open', record, call('HGET', LOG, id) or '', (apart(call('HGET', BODY, id) or '')), output(record)} end
record = call('HGET', HIST, id)
if not record then return {'none'} end
return {'done', record, output(string.match(record, F_MATCH[[(RUN)]]))}
