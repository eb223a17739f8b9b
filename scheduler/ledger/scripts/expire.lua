-- expire ends, or sends to the end of the line, an expired run; and moves a parked one
-- into the history.
-- ARGV: 1 run  2 history: runs, 0 where its definition cannot be read  3 history: ms
-- Replies, with the pushes to do last: ended, its state | requeued | no: nothing is over (any more)
local id = ARGV[1]
local run, broken = load(id)
local list = {}
if not run then
  if broken then unreadable(id) end
  call('ZREM', LATE, id)
  return {'no', '', list}
end
if run[STATE] == 'failed' then -- it was parked, by refuse
  if blocked() then
    call('ZADD', LATE, format('%.0f', now + 60000), id)
    return {'no', run[STATE], list}
  end
  final(space(), id, run, 'failed', run[REASON])
  call('ZREM', LATE, id)
  trim(tonumber(ARGV[2]), tonumber(ARGV[3]))
  return {'ended', run[STATE], list}
end
local why = run[STATE] ~= 'running' and overdue(run)
local waited = run[STATE] == 'waiting' and run[WAITBY] ~= '' and now >= tonumber(run[WAITBY])
if not why and waited then -- its clock stops while its queue is paused
  local lost, still = stopped(run[QUEUE], run[WAITBY] - run[PATIENCE])
  local left = run[WAITBY] + lost - now
  if left > 0 then
    -- While the pause continues, the run is checked repeatedly, but less and less often: there may
    -- be very many such runs.
    if still then left = left + math.max(1000, math.min(still / 4, 60000)) end
    watch(id, run, format('%.0f', now + left))
    return {'no', run[STATE], list}
  end
end
if not why and not waited then
  watch(id, run)
  return {'no', run[STATE], list}
end
check()
local S, state, reply = space(), 'missed', 'ended'
if not why then
  local resource = string.match(run[BLOCKER], '^([^\30]*)')
  why = 'lock.wait: its locks were not free for ' .. format('%g', run[PATIENCE] / 1000) .. 's (on_busy: ' .. run[ONBUSY] ..
    '); first in the way: ' .. resource
  state = run[ONBUSY] == 'skip' and 'skipped' or 'failed'
end
if state == 'failed' and run[ONBUSY] ~= 'fail' then
  reply, run[WAITBY] = 'requeued', ''
  local patience = S.patience('+' .. id)
  S.drop('+' .. id)
  S.visit(park(S, id, run, patience, {}))
else
  final(S, id, run, state, why)
  trim(tonumber(ARGV[2]), tonumber(ARGV[3]))
end
S.settle()
offered(S, list)
return {reply, run[STATE], list}
