-- crash closes the attempt of a run whose session has ended: the run becomes due again, or ends. When the session lives
-- and only the hold has ended under the attempt (max hold, or revoked), it is a failed attempt.
-- ARGV: 1 run  2 token seen  3 on crash: rerun | abandon  4 crashes at most  5 history: runs  6 history: ms
--       7 retries at most  8 pause before the next one, ms
-- Replies, with the pushes to do last: closed, the run's state | no: it is not so (any more)
-- While workers say again what Redis has lost, no attempt is closed: one that is known to have run may be said to have
-- ended in the next moment, and its hold is gone for that reason.
local id = ARGV[1]
local run, list = load(id), {}
if not run or run[STATE] ~= 'running' or run[TOKEN] ~= ARGV[2] or recalling() then return {'no', '', list} end
local lives = ends(run[SESSION])
if lives and stands(run[HOLDER]) then return {'no', '', list} end
check()
local S = space()
settled(id, run)
S.free(run[HOLDER], true)
if lives then
  local fails = run[FAILS] + 1
  run[FAILS] = format('%d', fails)
  close(id, run, 'failed', '"its locks ended under it: it held them for too long, or they were revoked"')
  if run[STOP] ~= '' then
    final(S, id, run, 'canceled', run[STOP])
  elseif fails > tonumber(ARGV[7]) then
    final(S, id, run, 'failed', '')
  else
    run[STATE], run[AT] = 'retrying', format('%.0f', now + ARGV[8])
    call('ZADD', TIMER, run[AT], id)
    save(id, run)
  end
else
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
end
if run[FINISHED] ~= '' then trim(tonumber(ARGV[5]), tonumber(ARGV[6])) end
S.settle()
offered(S, list)
return {'closed', run[STATE], list}
