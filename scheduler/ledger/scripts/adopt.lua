-- adopt records the run of a request that came through the queue itself, under an id that its
-- sender chose. While that run is outstanding the request exists already; after its end it is a new
-- one, id~2 and so on, unless it has come before and a run of the id was made since then.
-- ARGV: 1 job  2 run id  3 session of the worker that received it  4 a word for this request, or
--       for this delivery, the same whenever it is sent  5 1: a worker may have received it before
--       6 queue  7 ms for which the id is remembered  8 why the run fails at once, or ""
--       9 arguments (JSON)
--       10 definition, as embody takes it  11 ms that it waits for its bundle, or ""
--       12 what happens to it then
--       13 limits of its holds  14 history: runs  15 history: ms  16 ms for which the word is
--       remembered  17 the trace context of the request, after a blank, or ""
--       18 since when the request has its word (server ms), or 0
--       19... items, without the lock of the run
-- Replies: created, run id, n (0 when it has failed), state | exists, run id, its state ("" when
--   only the id is remembered) | dead: the session has ended, so by now another worker may have
--   received it
local job, base = ARGV[1], ARGV[2]
if not ends(ARGV[3]) then return {'dead'} end
local last, givings = string.match(call('HGET', FACTS, 'a' .. base) or '', '^(%d+)\30(.*)$')
local word = '\0' .. ARGV[4] -- no run id begins like this
local given = call('ZSCORE', IDS, word) or givings and string.find(givings, ARGV[4], 1, true)
local k = tonumber(last or 1)
local function name() return k == 1 and base or format('%s~%d', base, k) end
-- stateOf returns the state of a run, when it was made (ms), and true if it is outstanding.
local function stateOf(id)
  local there = load(id)
  if there then return there[R_STATE], there[R_CREATED], true end
  there = call('HGET', HIST, id)
  if there then return string.match(there, R_MATCH[[(STATE) N JOB QUEUE TRIGGER TICK (CREATED)]]) end
end

local state, made, outstanding = stateOf(name())
local remembered = call('ZSCORE', IDS, base) -- also one that a client gave to a run in another way
-- came reports whether the request came before a run was made (ms). If it did, the run is its own:
-- since the request has its word, it is in the queue, where no other one has its id.
local function came(made) return ARGV[5] == '1' and tonumber(made) >= tonumber(ARGV[18]) end
if state or last or remembered and tonumber(remembered) > now then
  -- Without its record, the last run was made when its id was remembered, or long ago.
  made = tonumber(made) or (remembered or now) - ARGV[7]
  if outstanding or given or came(made) then return {'exists', name(), state or ''} end
  -- The history may still have some runs of an id that was forgotten.
  repeat
    k = k + 1
    state, made = stateOf(name())
    if state and came(tonumber(made) or now) then return {'exists', name(), state} end
  until not state
end

local id = name()
if ARGV[8] ~= '' then check() else checkBodies(ARGV[10]) end
forget(100)
call('ZADD', IDS, format('%.0f', now + ARGV[7]), base, format('%.0f', now + ARGV[16]), word)
-- Most ids are used once, and need nothing more. The words are for builds that know no other ones:
-- the last eight.
if k > 1 then
  call('HSET', FACTS, 'a' .. base, format('%d', k) .. '\30' .. ARGV[4] .. sub('\30' .. (givings or ''), 1, 7 * (#ARGV[4] + 1)))
end
local run = fresh(job, ARGV[6], 'enqueue', '')
run[R_BY] = ARGV[17]
if ARGV[8] ~= '' then
  run[R_STATE], run[R_REASON], run[R_FINISHED] = 'failed', ARGV[8], ms
  local args, marked = unmarked(ARGV[9])
  if marked then
    tell(job, sub(ARGV[10], string.find(ARGV[10], US, 1, true) + 1), 'failed', {messageOf(id, run, 'failed', endingOf(run), '')})
  end
  archive(id, run, '', args)
  totalRun(run)
  trim(tonumber(ARGV[14]), tonumber(ARGV[15]))
  return {'created', id, '0', 'failed'}
end
run[R_PATIENCE], run[R_ONBUSY], run[R_LIMITS] = ARGV[11], ARGV[12], ARGV[13]
for i = 19, #ARGV do run[R_ITEMS + i - 19] = ARGV[i] end
run[#run + 1] = 'xrun:' .. id
embody(id, ARGV[9], ARGV[10])
call('ZADD', OPEN, '0', job .. '\0' .. pad(0) .. '\0' .. id)
due(id, run)
return {'created', id, run[R_N], run[R_STATE]}
