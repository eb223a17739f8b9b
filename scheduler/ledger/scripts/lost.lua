-- lost writes the line for the ticks of a job after Redis has lost its records.
-- ARGV: 1 job  2 id of the line  3 and 4 the first and the last tick of the line (ms)
-- Replies: ok
local run = fresh(ARGV[1], '', 'schedule', ARGV[3])
run[STATE], run[REASON], run[FINISHED], run[UPTO] =
  'lost', 'Redis was emptied: what no live worker knew of these ticks is lost', ms, ARGV[4]
archive(ARGV[2], run, '', 'null')
return {'ok'}
