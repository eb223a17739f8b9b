-- register registers the definitions of a config, and reports for each whether it is the active one
-- of its job.
-- ARGV: 1 digest of the config  2 ms after which a definition that no worker carries gives way
--       3 ms after which a job that no worker carries is retired  4 1: the definitions are signed,
--       and replace equal ones that are stored without this signature; else 0  5 1: these are the
--       last definitions of the config, else 0  then six for each job: job, hash of its definition,
--       trigger, definition (JSON), the cursor (ms) that the caller knows, or "", and the order
--       that this definition got when the caller last registered it, or "" when it has not done so
-- Replies: now (ms), the revision of the cursors before this, then six for each job, in the order
--   of ARGV: its cursor (ms), active | drifted | change, for change, the definition (JSON) that is
--   still active, 1 when the job begins anew although the caller knows a cursor: Redis has lost it,
--   unless remove.lua removed the job; the absence of the job (see m<job> in facts), or ""; and the
--   order of its definition
-- lib/carry.lua has the rules: which definition is active, and when a job begins anew. While lost
-- state is being re-asserted, the highest cursor that a worker knows counts. This script reads and
-- writes for all jobs together: a deploy changes very many. No job comes twice.
local config, gone, retired = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local recalls = reasserting()
checkJobs()
local out = {ms, call('HGET', LEDGER, 'rev') or '0'}
local presence = enter(config, gone, retired, ARGV[5] == '1')
local before = presence.order -- the highest order
-- New orders are not below the time, so they are above those that callers have got, although Redis
-- may have lost the highest one. Orders matter within a job only: jobs may have the same ones.
local highest, fresh = before, math.max(before + 1, now)

if #ARGV == 5 then return out end
local names, facts, absences = {}, {}, {}
for i = 6, #ARGV, 6 do
  local at = i / 6
  names[at], facts[at], absences[at] = ARGV[i], 'v' .. ARGV[i], 'm' .. ARGV[i]
end
absences = call('HMGET', FACTS, unpack(absences))
local cursors, texts = call('HMGET', CURSOR, unpack(names)), call('HMGET', FACTS, unpack(facts))
local kept, moved, begun, revised = {}, {}, {}, {} -- what is written to FACTS, CURSOR, DEF, REV
local dropped = false -- a definition gives way, or a config that carried one
local changing, places = {}, {} -- the jobs with a change, and where out has their definitions

for i = 6, #ARGV, 6 do
  local job, hash, trigger, definition, given = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 5])
  local at = i / 6
  local active, versions = versionsOf(texts[at])
  local cursor, last, lost = cursors[at], ARGV[i + 4], 0
  local carried, mine, latest, back = carriedUntil(presence, versions, hash, given)
  if not active then cursor, last = unlessForgotten(job, cursor, last, retired) end
  local unknown = not active
  -- after a loss of data, a worker that does not carry the job has re-asserted its cursor
  local spared = unknown and cursor and call('ZSCORE', IDS, '\2' .. job)
  if spared then
    call('ZREM', IDS, '\2' .. job)
    carried = spared - retired
  end
  local without = othersPresent(presence, carried, back)
  local absence = absences[at]
  if absence and not active then -- the job was forgotten, by a build that knows no absences
    call('HDEL', FACTS, 'm' .. job)
    absence = nil
  end
  -- The caller knows a later cursor: Redis has lost the time in which the job was carried.
  local behind = recalls and cursor and last ~= '' and tonumber(last) > tonumber(cursor)
  if active and not behind and (carried < now - retired or without >= gone) then
    absence = absent(job, versions, active, cursor, absence)
    active, versions, mine, dropped = nil, {}, nil, true
  end
  if spared and not recalls and without >= gone then cursor = nil end -- it was removed
  local first, new = not active, not active
  if not mine then
    mine = {hash = hash, order = given or math.max(fresh, latest + 1), trigger = trigger, configs = ''}
    versions[#versions + 1] = mine
  elseif mine.seen < now - gone and not given then
    mine.order = math.max(fresh, latest + 1)
  end
  -- Redis may have lost the later of two registrations
  mine.order = math.max(mine.order, given or 0)
  highest = math.max(highest, mine.order)
  mine.seen = now
  dropped = addConfig(presence, mine, gone) or dropped
  local left, newest, was = stillCarried(versions, active, gone)
  local status = 'active'
  if first then
    active = hash
    -- Redis has lost it, and a worker may have asserted its cursor already
    if unknown and (cursor or last ~= '') then
      cursor, lost = cursor or recalls and last or ms, 1
    else
      cursor = ms
    end
    call('HSETNX', FACTS, 'g' .. job, 'r' .. ms)
  elseif newest ~= mine then
    status = 'drifted'
  elseif active ~= hash and was.trigger == trigger then
    active, first = hash, true
  elseif active ~= hash then
    status = 'change'
  end
  if recalls and last ~= '' then cursor = recall(job, cursor, last) end
  -- until its ticks are decided
  if was and was.hash == active and was.seen < now - gone then left[#left + 1] = was end
  dropped = dropped or #left < #versions
  if new then
    local k = #moved
    moved[k + 1], moved[k + 2] = job, cursor
  end
  if first then
    local k = #begun
    begun[k + 1], begun[k + 2], revised[k + 1], revised[k + 2] = job, definition, 0, job
  elseif ARGV[4] == '1' and active == hash and call('HGET', DEF, job) ~= definition then
    call('HSET', DEF, job, definition)
  end
  local text = versionsText(active, left)
  if text ~= texts[at] then
    local k = #kept
    kept[k + 1], kept[k + 2] = facts[at], text
  end
  local k = #out
  out[k + 1], out[k + 2], out[k + 3], out[k + 4] = cursor, status, '', lost
  out[k + 5], out[k + 6] = absence or '', format('%.0f', mine.order)
  if status == 'change' then
    changing[#changing + 1], places[#places + 1] = job, k + 3
  end
end
if dropped then call('HSET', LEDGER, 'dropped', ms) end
if highest > before then call('HSET', LEDGER, 'order', format('%.0f', highest)) end
if #moved > 0 then call('HSET', CURSOR, unpack(moved)) end
if #kept > 0 then call('HSET', FACTS, unpack(kept)) end
if #begun > 0 then
  local rev = call('HINCRBY', LEDGER, 'rev', #begun / 2) - #begun / 2
  for k = 1, #begun, 2 do revised[k] = rev + (k + 1) / 2 end
  call('HSET', DEF, unpack(begun))
  call('ZADD', REV, unpack(revised))
end
if #changing > 0 then
  local definitions = call('HMGET', DEF, unpack(changing))
  for i = 1, #changing do out[places[i]] = definitions[i] or '' end
end
return out
