-- enqueueall does for several requested runs what enqueue does for one: all of them, or, after an
-- error, none. Requests of one kind have everything in common but their id, time, arguments and
-- items. They share the calls of Redis, which take longer than all else that a request needs. A
-- second request for an id finds the run of the first.
-- KEYS: after those of the ledger: the four of the history of each kind's job, then the children if
--       a kind has a parent, then acts if there is an entry for the audit
-- ARGV: 1 entry for the audit, or ""; it counts the runs that are new  2 how many kinds there are
--       for each kind: job, queue, trigger, ms for which its ids are remembered (0: not beyond the
--       history), the run from which its runs were made or "", name of the definition, definition
--       (JSON), ms for which a run waits for its bundle or "", what happens to it then, limits of
--       its holds
--       for each request, at most 1,000: the number of its kind, run id, "" or when it starts: not
--       before (server ms), and not before so many ms from now, arguments (JSON), items joined by
--       \31, the trace context of the request, after a blank, or ""
-- Replies: for each request 1: created and due under the n 1 | 0: created, scheduled | the state of
--   the run that exists ("" when only the id is remembered, or where other records are long)
local entry, kinds = ARGV[1], tonumber(ARGV[2])
local base, first = 2 + 10 * kinds, #KEYS - 4 * kinds - (entry == '' and 0 or 1)
local n, CHILDREN = (#ARGV - base) / 6, nil
for k = 1, kinds do
  if ARGV[10 * k - 3] ~= '' then CHILDREN = KEYS[#KEYS - (entry == '' and 0 or 1)] end
end
if CHILDREN then first = first - 1 end

-- ofJob makes the functions of the library work on the history of a kind's job, and returns its
-- key.
local function ofJob(k)
  HIST, DONE, OUTPUT, MADE = unpack(KEYS, first + 4 * k - 3, first + 4 * k)
  return HIST
end

-- First, the existing runs. Some of these records are long: most of the time of a request would be
-- spent on copies of them.
local ids, states = {}, {}
local function look(key, which)
  local names = {}
  for j = 1, #which do names[j] = ids[which[j]] end
  local found = values(key, names)
  for j = 1, #which do
    local record = found[j]
    if record == nil then record = call('HEXISTS', key, names[j]) == 1 and '' end
    if record then states[which[j]] = string.match(record, R_MATCH[[(STATE)]]) or '' end
  end
end
local all = {}
for i = 1, n do ids[i], all[i] = ARGV[base + 6 * i - 4], i end
look(RUN, all)
local unknown = {} -- by kind
for i = 1, n do
  local k = tonumber(ARGV[base + 6 * i - 5])
  all[i], unknown[k] = k, unknown[k] or {}
  if not states[i] then unknown[k][#unknown[k] + 1] = i end
end
for k = 1, kinds do
  if unknown[k] and #unknown[k] > 0 then look(ofJob(k), unknown[k]) end
end
local remembered = call('ZMSCORE', IDS, unpack(ids))
local replies, seen, new, ofKind, remembers = {}, {}, {}, {}, false
for i = 1, n do
  local id, k = ids[i], all[i]
  if not states[i] and remembered[i] and tonumber(remembered[i]) > now then states[i] = '' end
  if states[i] or seen[id] then
    replies[i] = states[i] or replies[seen[id]] == 1 and 'due' or 'scheduled'
  else
    local at, later = string.match(ARGV[base + 6 * i - 3], '^(%d+) (%d+)$')
    at = at and math.max(tonumber(at), now + later) or now
    ofKind[k] = ofKind[k] or {}
    seen[id], new[#new + 1], ofKind[k][#ofKind[k] + 1] = i, i, id
    replies[i], states[-i] = at > now and 0 or 1, at -- below 1: when it is due
    remembers = remembers or ARGV[10 * k - 4] ~= '0'
  end
end
if #new == 0 then return replies end

local byName = tonumber(WRITTEN or '1') >= 2
for k = 1, kinds do if ofKind[k] then checkBodies(ARGV[10 * k - 2]) end end
call('ZCARD', OPEN) call('ZCARD', READY) call('ZCARD', PUSH) call('ZCARD', TIMER)
local parents = {}
for k = 1, kinds do
  local parent = ARGV[10 * k - 3]
  parents[k] = parent ~= '' and ofKind[k] and childrenOf(parent, ofKind[k], ofJob(k), CHILDREN) or ''
end
if remembers then forget(100) end
if entry ~= '' then audit((string.gsub(entry, '\31[^\31]*', '\31' .. #new, 1))) end
local names, old = {}, nil
for j = 1, #new do names[j] = ids[new[j]] end
old = call('HMGET', BODY, unpack(names)) -- a foreign write has removed its record
for j = 1, #new do
  if old[j] then
    ofJob(all[new[j]])
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

local runs, bodies, open, ready, push, timer, keep = {}, {}, {}, {}, {}, {}, {}
for j = 1, #new do
  local i, a, b = new[j], 2 * j - 1, 2 * j
  local id, k, at, args, items = ids[i], 10 * all[i], states[-i], ARGV[base + 6 * i - 2], ARGV[base + 6 * i - 1]
  local job, queue, trigger, by = ARGV[k - 7], ARGV[k - 6], ARGV[k - 5], parents[all[i]] .. ARGV[base + 6 * i]
  runs[a], bodies[a], bodies[b] = id, id, args .. US .. (byName and '@' .. ARGV[k - 2] or ARGV[k - 1])
  open[a], open[b] = '0', job .. '\0' .. '0000000000000000' .. '\0' .. id
  if ARGV[k - 4] ~= '0' then keep[#keep + 1], keep[#keep + 2] = format('%.0f', now + ARGV[k - 4]), id end
  if replies[i] == 1 then
    ready[#ready + 1], ready[#ready + 2] = '0', queue .. '\0' .. format('%016.0f', now) .. '\0' .. id
    push[#push + 1], push[#push + 2] = ms, id
    runs[b] = R_TEXT{STATE = 'due'; N = '1'; JOB = job; QUEUE = queue; TRIGGER = trigger; CREATED = ms; SINCE = ms; BY = by;
      PATIENCE = ARGV[k]; ONBUSY = ARGV[k + 1]; LIMITS = ARGV[k + 2]; ITEMS = items}
  else
    at = format('%.0f', at)
    timer[#timer + 1], timer[#timer + 2] = at, id
    runs[b] = R_TEXT{STATE = 'scheduled'; JOB = job; QUEUE = queue; TRIGGER = trigger; CREATED = ms; AT = at; BY = by;
      PATIENCE = ARGV[k]; ONBUSY = ARGV[k + 1]; LIMITS = ARGV[k + 2]; ITEMS = items}
  end
end
if #keep > 0 then call('ZADD', IDS, unpack(keep)) end
call('HSET', BODY, unpack(bodies))
call('ZADD', OPEN, unpack(open))
if #ready > 0 then
  call('ZADD', READY, unpack(ready))
  call('ZADD', PUSH, unpack(push))
end
if #timer > 0 then call('ZADD', TIMER, unpack(timer)) end
call('HSET', RUN, unpack(runs))
return replies
