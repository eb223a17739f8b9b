-- crash closes the attempt of a run whose session has ended: the run becomes due again, or ends.
-- ARGV: 1 run  2 token seen  3 on crash: rerun | abandon  4 crashes at most  5 history: runs  6 history: ms
-- Replies, with the pushes to do last: closed, the run's state | no: it is not so (any more)
local id = ARGV[1]
local run, list = load(id), {}
if not run or run[STATE] ~= 'running' or run[TOKEN] ~= ARGV[2] or ends(run[SESSION]) then return {'no', '', list} end
local S = space()
settled(id, run)
S.free(run[HOLDER])
local crashes = run[CRASHES] + 1
run[CRASHES] = format('%d', crashes)
close(id, run, 'crashed', '"the worker ' .. run[SESSION] .. ' ended or lost its lease"')
if ARGV[3] == 'abandon' then
  final(S, id, run, 'lost', 'its worker ' .. run[SESSION] .. ' died (on_crash: abandon)')
elseif run[STOP] ~= '' then
  final(S, id, run, 'canceled', run[STOP])
elseif crashes >= tonumber(ARGV[4]) then
  final(S, id, run, 'failed', 'its worker died ' .. crashes .. ' times (max_crashes)')
else
  due(id, run)
  pushes(list, id, run)
end
if run[STATE] ~= 'due' then trim(tonumber(ARGV[5]), tonumber(ARGV[6])) end
S.settle()
offered(S, list)
return {'closed', run[STATE], list}
