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
if run[R_STATE] == 'failed' then -- it was parked, by refuse
  if blocked() then
    call('ZADD', LATE, format('%.0f', now + 60000), id)
    return {'no', run[R_STATE], list}
  end
  final(space(), id, run, 'failed', run[R_REASON])
  call('ZREM', LATE, id)
  trim(tonumber(ARGV[2]), tonumber(ARGV[3]))
  return {'ended', run[R_STATE], list}
end
local why = run[R_STATE] ~= 'running' and overdue(run)
local waited = run[R_STATE] == 'waiting' and run[R_WAITBY] ~= '' and now >= tonumber(run[R_WAITBY])
if not why and waited then -- its clock stops while its queue is paused
  local lost, still = stopped(run[R_QUEUE], run[R_WAITBY] - run[R_PATIENCE])
  local left = run[R_WAITBY] + lost - now
  if left > 0 then
    -- While the pause continues, the run is checked repeatedly, but less and less often: there may
    -- be very many such runs.
    if still then left = left + math.max(1000, math.min(still / 4, 60000)) end
    watch(id, run, format('%.0f', now + left))
    return {'no', run[R_STATE], list}
  end
end
if not why and not waited then
  watch(id, run)
  return {'no', run[R_STATE], list}
end
check()
local S, state, reply = space(), 'missed', 'ended'
if not why then
  local resource = string.match(run[R_BLOCKER], B_MATCH[[(RESOURCE)]])
  why = 'lock.wait: its locks were not free for ' .. format('%g', run[R_PATIENCE] / 1000) .. 's (on_busy: ' .. run[R_ONBUSY] ..
    '); first in the way: ' .. resource
  state = run[R_ONBUSY] == 'skip' and 'skipped' or 'failed'
end
if state == 'failed' and run[R_ONBUSY] ~= 'fail' then
  reply, run[R_WAITBY] = 'requeued', ''
  local patience = S.patience('+' .. id)
  S.drop('+' .. id, 't')
  S.visit(park(S, id, run, patience, ''))
else
  final(S, id, run, state, why)
  trim(tonumber(ARGV[2]), tonumber(ARGV[3]))
end
S.settle()
offered(S, list)
return {reply, run[R_STATE], list}
