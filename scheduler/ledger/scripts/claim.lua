-- claim starts an attempt: it checks the run first, then takes its whole bundle and begins the
-- attempt under the hold's token, all in one step; a run with a taken bundle goes to wait,
-- without a worker.
-- ARGV: 1 session  2 hold id  3 run  4 n  5 patience of a wait, ms  6 1: also when the run has
--       crashed before, else 0  7 ms for which a bundle that is held for too long stays taken after
--       its work was ended  8 marks of definitions of its job that this worker can run, each
--       between two \30; "": it can run all. The worker has the texts of those that are marked by
--       their names  9... for a claim without a delivery: the queues in which a run that has been
--       due longer, and has never crashed, goes first
-- Replies, with the pushes to do (id, n, queue) as one list:
--   granted, token, record, arguments and definition (joined by \31), pushes. The definition is its
--     name if that was among the marks, else the text
--   waiting, <describe> (eight fields), pushes
--   behind, pushes: earlier ticks of its job go first, it waits behind them
--   later, pushes, first: a run that was due earlier goes first; this one must be pushed, under the
--     next n; no pushes during a grace period, in which nothing is claimed. first (id, n, queue, or
--     empty): that run, if its delivery is in its queue, so that no worker is about to claim it,
--     and may not be the next one that is fetched: the run was offered its locks before, or is in
--     another queue
--   over, pushes: it has ended: its time to start is over, or its bundle can never be granted
--   needs, mark, definition: the worker has not named such a definition as one that it can run, or
--     the definition is missing ('');
--     nothing was changed
--   stale: not due, or another n | dead: the session has ended
--   crashed, crashes, 1 if it is suspected to have caused one, else 0: it has crashed before, and
--     nothing was changed
--   broken: its record cannot be read
-- Sent again it gives the same reply, for as long as the attempt runs.
local session, hid, id = ARGV[1], ARGV[2], ARGV[3]
if not ends(session) then return {'dead'} end
local run, broken = load(id)
if broken then return {'broken'} end
if not run then return {'stale'} end

local args, definition, byname = apart(call('HGET', BODY, id) or '')
local mark = markof(definition, byname)
local able = string.find(ARGV[8], '\30' .. mark .. '\30', 1, true)

local function granted(list)
  local brought = byname and able and definition or resolve(definition, byname)
  return {'granted', run[R_TOKEN], concat(run, US), args .. US .. brought, list}
end

if run[R_STATE] == 'running' and run[R_HOLDER] == hid then return granted({}) end
if run[R_STATE] ~= 'due' or run[R_N] ~= ARGV[4] then return {'stale'} end
-- lost state is being re-asserted: the sweep pushes it when that is over
if not quiet() and space().grace() then
  due(id, run)
  return {'later', {}, {}}
end
local S, list = nil, {}

local why = overdue(run)
if why then
  check()
  S = space()
  final(S, id, run, 'missed', why)
  S.settle()
  offered(S, list)
  return {'over', list}
end
if not able then
  local text = resolve(definition, byname)
  if ARGV[8] ~= '' or byname and text == '' then return {'needs', mark, text} end
end
if ARGV[6] == '0' and run[R_CRASHES] ~= '0' then return {'crashed', run[R_CRASHES], suspected(id, run) and '1' or '0'} end
local other, before, queued -- the run that goes first, the oldest one in these queues
for i = 9, #ARGV do
  local older, record, there = goesFirst(ARGV[i], (before or run)[R_SINCE])
  if older then other, before, queued = older, record, there end
end
if other then
  local goes = {}
  if queued and (before[R_WAITS] == '1' or before[R_QUEUE] ~= run[R_QUEUE]) then pushes(goes, other, before) end
  -- under the next n: a late copy of this claim must not take what a delivery is pushed for
  due(id, run)
  pushes(list, id, run)
  return {'later', list, goes}
end

-- Ticks of one job start in their order: earlier ones that are due, but whose deliveries take
-- longer, go to wait in front of this one.
if run[R_SERIAL] == '1' and run[R_TICK] ~= '' and run[R_WAITS] ~= '1' then
  S = parkEarlier(run, ARGV[5])
  if S then
    S.visit(park(S, id, run, ARGV[5], B_TEXT{RESOURCE = 'job:' .. run[R_JOB]; SINCE = ms}))
    S.reap()
    offered(S, list)
    return {'behind', list}
  end
end

local names, items = bundle(run, R_ITEMS)
local busy = run[R_WAITS] == '1' or not quiet()
for i = 1, #items do busy = busy or sub(items[i], 1, 1) ~= 'x' end
if not busy then -- the bundle of almost every run is free, and no request waits for any of it
  local others = occupied(names, 1, #names)
  for i = 1, #names do busy = busy or others[names[i]] end
end
if busy then
  S = space()
  S.reap()
  local wid = '+' .. id
  local unfit, name, n = S.unfit(items)
  if unfit then
    check()
    S.drop(wid, 'f')
    local reason = unfit == 'limit' and format('%s has %d permits in all', name, n) or
      n == 1 and name .. ' is declared as permits' or 'no permits of ' .. name .. ' are declared'
    final(S, id, run, 'failed', 'locks: ' .. reason)
    S.settle()
    offered(S, list)
    return {'over', list}
  end
  local resource, owner, beaten = S.blocked(items, S.ticket(wid), wid)
  if resource then
    local who = {S.describe(resource, owner)}
    park(S, id, run, ARGV[5], B_TEXT{RESOURCE = who[1]; SESSION = who[2]; ID = who[3]; INFO = who[4]; TOKEN = who[5];
      SINCE = format('%.0f', now - who[6])})
    S.settle() -- a wait that comes back into its queues may let nested ones pass
    offered(S, list)
    table.insert(who, 1, 'waiting')
    who[10] = list
    return who
  end
  for i = 1, #beaten do S.lapse(beaten[i]) end
  if run[R_WAITS] == '1' then S.drop(wid, 'g', string.match(run[R_BLOCKER], B_MATCH[[(RESOURCE) * (ID) (INFO)]])) end
end

undue(id, run)
run[R_STATE], run[R_HOLDER], run[R_SESSION], run[R_CLOSED], run[R_WAITS], run[R_WAITBY] = 'running', hid, session, '', '', ''
run[R_ATTEMPT], run[R_STARTED] = format('%d', run[R_ATTEMPT] + 1), ms
if run[R_FIRST] == '' then run[R_FIRST] = ms end
local limits = run[R_LIMITS]
-- a limited hold ends later here than at its worker, where its work is ended first
if limits ~= '' then
  local most, rest = string.match(limits, '^(%d+)(.*)$')
  limits = most == '0' and limits or format('%.0f', most + ARGV[7]) .. rest
end
run[R_TOKEN] = grant(hid, session, info(id, run), items, limits)
works(id, run)
watch(id, run)
save(id, run)
if S then
  S.settle()
  offered(S, list)
end
return granted(list)
