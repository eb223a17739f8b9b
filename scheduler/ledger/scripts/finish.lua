-- finish records how an attempt ended and frees its locks, which pass to the next waiters, in one step.
-- ARGV: 1 run  2 token  3 hold id  4 outcome: succeeded | failed | retry | handback | canceled  5 pause before the run is due again, ms
--       6 error (JSON: a string, or null)  7 output  8 history: runs  9 history: ms
-- Replies, with the pushes to do last: recorded, the run's state | counted: this attempt was closed before, and only a
-- success could still count | fenced: a later attempt has begun, or another outcome is final
-- A success counts while its token is the last one claimed and the run is not final, even when its hold has ended.
-- A run that was asked to stop is canceled, whatever its attempt came to, if that is no success.
-- The first write is a removal, so that a full Redis does not refuse it.
local id, token, hid, outcome = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local run, list = load(id), {}
local last = run and run[TOKEN] == token
local stood = last and run[STATE] == 'running' and run[HOLDER] == hid and stands(hid)
local S = space()
if last then settled(id, run) end
S.free(hid)

local function done(reply, state)
  S.settle()
  if not quiet() then S.reap() end
  offered(S, list)
  return {reply, state, list}
end

if not run then
  local past = call('HGET', HIST, id)
  past = past and fields(string.match(past, '^([^\29]*)'))
  if past and past[TOKEN] == token then return done('recorded', past[STATE]) end
  return done('fenced', past and past[STATE] or '')
end
if not last then return done('fenced', run[STATE]) end

local function output() if ARGV[7] ~= '' then call('HSET', OUTPUT, id, ARGV[7]) end end

if outcome == 'succeeded' then
  local reason = ''
  if run[CLOSED] == '1' then
    reason = 'succeeded after its attempt had been counted'
  else
    close(id, run, 'succeeded', 'null')
  end
  output()
  final(S, id, run, 'succeeded', reason)
  trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
  return done('recorded', 'succeeded')
end
if not stood then
  if run[STATE] == 'running' and run[CLOSED] ~= '1' then
    works(id, run) -- the sweep counts this attempt
  end
  return done('counted', run[STATE])
end
output()

local function pause(state)
  run[STATE], run[AT] = state, format('%.0f', now + ARGV[5])
  call('ZADD', TIMER, run[AT], id)
  save(id, run)
end

if outcome == 'canceled' or run[STOP] ~= '' then
  local closed = {failed = 'failed', retry = 'failed', handback = 'handed back', canceled = 'canceled'}
  close(id, run, closed[outcome], ARGV[6])
  if closed[outcome] == 'failed' then run[FAILS] = format('%d', run[FAILS] + 1) end
  final(S, id, run, 'canceled', run[STOP])
  trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
elseif outcome == 'handback' then
  close(id, run, 'handed back', ARGV[6])
  if ARGV[5] == '0' then
    due(id, run)
    pushes(list, id, run)
  else
    pause('scheduled')
  end
elseif outcome == 'retry' then
  close(id, run, 'failed', ARGV[6])
  run[FAILS] = format('%d', run[FAILS] + 1)
  pause('retrying')
else
  close(id, run, 'failed', ARGV[6])
  run[FAILS] = format('%d', run[FAILS] + 1)
  final(S, id, run, 'failed', '')
  trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
end
return done('recorded', run[STATE])
