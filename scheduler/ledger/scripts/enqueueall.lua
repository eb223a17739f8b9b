-- enqueueall does for several requested runs what enqueue does for one: all of them, or, after an
-- error, none. Requests of one kind have everything in common but their id, time, arguments and
-- items. They share the calls of Redis, which take longer than all else that a request needs. A
-- second request for an id finds the run of the first. For requests that a worker adopts, it does
-- what adopt does, if their ids are new.
-- KEYS: after those of the ledger: lists, the four of the history of each kind's job, then the
--       children if a kind has a parent, then acts if there is an entry for the audit
-- ARGV: 1 entry for the audit, or ""; it counts the runs that are new  2 how many kinds there are
--       for each kind: job, queue, trigger, ms for which its ids are remembered (0: not beyond the
--       history), the run from which its runs were made or "" and, after a blank, the trace context
--       of the requests, name of the definition, definition (JSON), ms for which a run waits for
--       its bundle or "", what happens to it then, limits of its holds
--       for each request, at most 1,000: its kind (a number), run id, "" or when it starts: not
--       before (server ms), and not before so many ms from now; or the word for its delivery, as
--       adopt takes it, arguments (JSON), items (joined by \31)
--       at last: a staged list of which these are a part, or "", how many of its requests precede
--       them, how many they end with, or "" if they end it; session of the worker that adopts the
--       requests, or "", ms for their words
-- Replies: for each request 1: created and due under the n 1 | 0: created, scheduled | the state of
--   the run that exists ("" when only the id is remembered, or where other records are long; for
--   adopt, any text means that its id is not new). Or just dead, as in adopt; ahead: another
--   process has recorded this part of the list; or gone: the list is not staged
local entry, kinds, session = ARGV[1], tonumber(ARGV[2]), ARGV[#ARGV - 1]
if session ~= '' and not ends(session) then return {'dead'} end
local base, first = 2 + 10 * kinds, #KEYS - 4 * kinds - (entry == '' and 0 or 1)
local n, CHILDREN, parents, traces = (#ARGV - base) / 5 - 1, nil, {}, {}
for k = 1, kinds do
  parents[k], traces[k] = string.match(ARGV[10 * k - 3], '^([^ ]*)(.*)$')
  if parents[k] ~= '' then CHILDREN = KEYS[#KEYS - (entry == '' and 0 or 1)] end
end
if CHILDREN then first = first - 1 end
local LISTS, list, part, upto = KEYS[first], unpack(ARGV, #ARGV - 4, #ARGV - 2)
if list ~= '' then
  local _, n = progress(LISTS, list)
  if n ~= part then return {n and upto ~= '' and tonumber(n) >= tonumber(upto) and 'ahead' or 'gone'} end
end

-- ofJob makes the functions of the library work on the history of a kind's job. It returns the key.
local function ofJob(k)
  HIST, DONE, OUTPUT, MADE = unpack(KEYS, first + 4 * k - 3, first + 4 * k)
  return HIST
end

local ids, kindOf, states, unknown = {}, {}, {}, {}
-- look finds the runs. which: the numbers of the requests with these ids; nil: all, in order.
local function look(key, names, which)
  for j, state in pairs(statesIn(key, names)) do states[which and which[j] or j] = state end
end
for i = 1, n do ids[i], kindOf[i] = ARGV[base + 5 * i - 3], tonumber(ARGV[base + 5 * i - 4]) end
look(RUN, ids)
for i = 1, n do
  if not states[i] then
    local one = unknown[kindOf[i]] or {{}, {}}
    unknown[kindOf[i]] = one
    one[1][#one[1] + 1], one[2][#one[2] + 1] = ids[i], i
  end
end
for k, one in pairs(unknown) do look(ofJob(k), one[1], one[2]) end
local remembered = call('ZMSCORE', IDS, unpack(ids))
local replies, seen, new, ofKind, remembers = {}, {}, {}, {}, false
for i = 1, n do
  local id, k, when = ids[i], kindOf[i], ARGV[base + 5 * i - 2]
  if not states[i] and remembered[i] and (session ~= '' or tonumber(remembered[i]) > now) then states[i] = '' end
  if states[i] or seen[id] then
    replies[i] = states[i] or replies[seen[id]] == 1 and 'due' or 'scheduled'
  else
    local at = now
    if session == '' and when ~= '' then
      local start, later = string.match(when, '^(%d+) (%d+)$')
      at = math.max(tonumber(start), now + later)
    end
    ofKind[k] = ofKind[k] or {}
    seen[id], new[#new + 1], ofKind[k][#ofKind[k] + 1] = i, i, id
    replies[i], states[-i] = at > now and 0 or 1, at -- below 1: when it is due
    remembers = remembers or ARGV[10 * k - 4] ~= '0'
  end
end
if #new == 0 then
  recorded(LISTS, list, upto)
  return replies
end

local byName = tonumber(WRITTEN or '1') >= 2
for k = 1, kinds do if ofKind[k] then checkBodies(ARGV[10 * k - 2]) end end
call('ZCARD', OPEN) call('ZCARD', READY) call('ZCARD', PUSH) call('ZCARD', TIMER)
for k = 1, kinds do
  local parent = parents[k]
  parents[k] = (parent ~= '' and ofKind[k] and childrenOf(parent, ofKind[k], ofJob(k), CHILDREN) or '') .. traces[k]
end
if remembers then forget(100) end
if entry ~= '' then audit((string.gsub(entry, '\31[^\31]*', '\31' .. #new, 1))) end
recorded(LISTS, list, upto)
local names = {}
for j = 1, #new do names[j] = ids[new[j]] end
local old = call('HMGET', BODY, unpack(names)) -- a foreign write has removed its record
for j = 1, #new do
  if old[j] then
    ofJob(kindOf[new[j]])
    disembody(names[j])
  end
end
for k = 1, kinds do
  if byName and ofKind[k] then
    local name, text, more = ARGV[10 * k - 2], ARGV[10 * k - 1], #ofKind[k]
    if (call('HINCRBY', DEFS, '#' .. name, more) == more or call('HSTRLEN', DEFS, '@' .. name) ~= #text) and
      call('HSET', DEFS, '@' .. name, text) == 1 then
      ofJob(k)
      keepMade(name, #text)
    end
  end
end

-- The requests of a kind have these texts in common.
local inOpen, inReady, inBody, inRun, lasts = {}, {}, {}, {}, {}
for k = 1, kinds do
  local at, more = 10 * k, ofKind[k]
  if more then
    inOpen[k] = ARGV[at - 7] .. '\0' .. '0000000000000000' .. '\0'
    inReady[k] = ARGV[at - 6] .. '\0' .. format('%016.0f', now) .. '\0'
    inBody[k] = US .. (byName and '@' .. ARGV[at - 2] or ARGV[at - 1])
    inRun[k] = R_TEXT{STATE = 'due'; N = '1'; JOB = ARGV[at - 7]; QUEUE = ARGV[at - 6]; TRIGGER = ARGV[at - 5]; CREATED = ms; SINCE = ms;
      BY = parents[k]; PATIENCE = ARGV[at]; ONBUSY = ARGV[at + 1]; LIMITS = ARGV[at + 2]; ITEMS = ''}
    lasts[k] = ARGV[at - 4] ~= '0' and format('%.0f', now + ARGV[at - 4])
  end
end
local runs, bodies, open, ready, push, timer, keep = {}, {}, {}, {}, {}, {}, {}
for j = 1, #new do
  local i, a, b = new[j], 2 * j - 1, 2 * j
  local id, k, items = ids[i], kindOf[i], ARGV[base + 5 * i]
  runs[a], runs[b], bodies[a], bodies[b] = id, inRun[k] .. items, id, ARGV[base + 5 * i - 1] .. inBody[k]
  open[a], open[b] = '0', inOpen[k] .. id
  if lasts[k] then keep[#keep + 1], keep[#keep + 2] = lasts[k], id end
  if session ~= '' then keep[#keep + 1], keep[#keep + 2] = format('%.0f', now + ARGV[#ARGV]), '\0' .. ARGV[base + 5 * i - 2] end
  if replies[i] == 1 then
    ready[#ready + 1], ready[#ready + 2] = '0', inReady[k] .. id
    push[#push + 1], push[#push + 2] = ms, id
  else
    local at, k = format('%.0f', states[-i]), 10 * k
    timer[#timer + 1], timer[#timer + 2] = at, id
    runs[b] = R_TEXT{STATE = 'scheduled'; JOB = ARGV[k - 7]; QUEUE = ARGV[k - 6]; TRIGGER = ARGV[k - 5]; CREATED = ms; AT = at;
      BY = parents[kindOf[i]]; PATIENCE = ARGV[k]; ONBUSY = ARGV[k + 1]; LIMITS = ARGV[k + 2]; ITEMS = items}
  end
end
if #keep > 0 then call('ZADD', IDS, unpack(keep)) end
call('HSET', BODY, unpack(bodies))
call('ZADD', OPEN, unpack(open))
if #ready > 0 then call('ZADD', READY, unpack(ready)) call('ZADD', PUSH, unpack(push)) end
if #timer > 0 then call('ZADD', TIMER, unpack(timer)) end
call('HSET', RUN, unpack(runs))
return replies
