-- Carried definitions: which definition of a job is active, and when a job begins anew.
--
-- The newest definition, by its first registration, is active as long as it is carried. It becomes
-- so at once when its trigger is that of the one before; else (change) by activate, once the old
-- trigger has decided the ticks up to now. A definition is carried while a worker polls with a
-- config that has it. A definition that gave way returns to its place if the caller has its order:
-- that worker was absent, and must not take back what was deployed meanwhile. Without an order it
-- counts as new: a worker was started with it, perhaps to take another one back. This holds for a
-- config that returns with the same digest, too: until a registration of it has come to its last
-- definitions, was:<digest> is when its workers left, and those that were registered before that
-- are not carried by it. A new job begins now; so does one that was retired, or removed: other
-- workers were present for long enough that a definition gives way, and did not carry it. If the
-- config itself returns, these others must have come about when its workers left: they replaced
-- them. Workers that were present all the time never carried the job, and its own were only down.
-- The ticks that such a job missed become its absence, which every registration of it returns until
-- line.lua has written a line for them: register has no keys of histories, and cannot compute
-- ticks.

-- enter notes that a worker registers definitions of a config; last: the last ones of it. It
-- forgets configs and sessions of the past. It returns which configs workers have polled with: for
-- each, server ms of the last poll (seen), of the first one since a long pause (since), and at
-- which its workers left it (ended), until its definitions are registered again; this config, the
-- end of its earlier presence (returned), and the beginning of the present one (begins); and the
-- highest order.
local function enter(config, gone, retired, last)
  local seen, since, ended, order, all = {}, {}, {}, 0, call('HGETALL', LEDGER)
  for i = 1, #all, 2 do
    local kind, name = string.match(all[i], '^(%a+):(.*)$')
    if kind == 'config' then
      seen[name] = tonumber(all[i + 1])
      if seen[name] < now - retired then call('HDEL', LEDGER, all[i], 'since:' .. name, 'was:' .. name) end
    elseif kind == 'since' then
      since[name] = tonumber(all[i + 1])
    elseif kind == 'was' then
      ended[name] = tonumber(all[i + 1])
    elseif kind == 'carry' and not ends(name) then
      call('HDEL', LEDGER, all[i])
    elseif all[i] == 'order' then
      order = tonumber(all[i + 1])
    end
  end
  if not seen[config] or seen[config] < now - gone then
    since[config] = now
    call('HSET', LEDGER, 'since:' .. config, ms)
    if seen[config] then
      ended[config] = math.max(seen[config], ended[config] or 0)
      call('HSET', LEDGER, 'was:' .. config, format('%.0f', ended[config]))
    end
  end
  call('HSET', LEDGER, 'config:' .. config, ms)
  if last then call('HDEL', LEDGER, 'was:' .. config) end
  seen[config] = now
  return {config = config, returned = ended[config], begins = since[config] or 0, seen = seen, since = since, ended = ended, order = order}
end

-- carriedUntil returns when a job was last carried (server ms, 0 for never), its definition with
-- this hash, the highest order of its definitions, and whether its config has returned without it
-- being carried meanwhile. It notes in each definition when a worker last carried that. given: the
-- order that the caller has for this definition, or nil.
local function carriedUntil(presence, versions, hash, given)
  local config, returned = presence.config, presence.returned
  local carried, mine, latest, back = 0, nil, 0, false
  for k = 1, #versions do
    local v = versions[k]
    latest = math.max(latest, v.order)
    for c in string.gmatch(v.configs, '[^,]+') do
      local polled = presence.seen[c] or 0
      if c == config and returned and v.order < presence.begins and not (v.hash == hash and given) then polled, back = returned, true end
      v.seen = math.max(v.seen, polled)
      carried = math.max(carried, v.seen, presence.ended[c] or 0)
    end
    if v.hash == hash then mine = v end
  end
  return carried, mine, latest, back
end

-- unlessForgotten returns the cursors of a job without a definition that Redis and the caller know,
-- nil and '' for those from before it was forgotten: they belong to no job any more.
local function unlessForgotten(job, cursor, last, retired)
  local at = call('ZSCORE', IDS, '\1' .. job)
  if not at then return cursor, last end
  call('ZREM', IDS, '\1' .. job)
  at = at - retired
  if cursor and tonumber(cursor) <= at then cursor = nil end
  if last ~= '' and tonumber(last) <= at then last = '' end
  return cursor, last
end

-- othersPresent returns for how many ms workers with other configs were present since a job was
-- last carried. back: see carriedUntil.
local function othersPresent(presence, carried, back)
  -- ms that a deploy takes, from the first worker with another config to the last one without it
  local ROLLOUT = 10 * 60 * 1000
  local config, since, returned, without = presence.config, presence.since, presence.returned, 0
  for c, at in pairs(presence.seen) do
    if c ~= config and (not back or (since[c] or at) > returned - ROLLOUT) then without = math.max(without, at - math.max(since[c] or at, carried)) end
  end
  return without
end

-- absent writes the absence of a job that begins anew, and returns it: from its cursor, or from the
-- beginning of an earlier absence that has no line yet, up to now.
local function absent(job, versions, active, cursor, absence)
  for k = 1, #versions do
    local v = versions[k]
    -- its trigger has a time zone at most if the job has no schedule
    if v.hash == active and cursor and string.find(v.trigger, '%S.* ') then
      absence = concat({absence and string.match(absence, '^%d+') or cursor, ms, v.trigger}, '\30')
      call('HSET', FACTS, 'm' .. job, absence)
    end
  end
  return absence
end

-- addConfig adds the config to those of a definition, and drops those that no worker carries any
-- more. It returns whether it has dropped one.
local function addConfig(presence, version, gone)
  if string.find(',' .. version.configs .. ',', ',' .. presence.config .. ',', 1, true) then return false end
  local carrying, dropped = presence.config, false
  for c in string.gmatch(version.configs, '[^,]+') do
    if (presence.seen[c] or 0) >= now - gone then carrying = carrying .. ',' .. c else dropped = true end
  end
  version.configs = carrying
  return dropped
end

-- stillCarried returns the definitions that are carried, the newest of them, and the one with the
-- hash active.
local function stillCarried(versions, active, gone)
  local left, newest, was = {}, nil, nil
  for k = 1, #versions do
    local v = versions[k]
    if v.hash == active then was = v end
    if v.seen >= now - gone then
      left[#left + 1] = v
      if not newest or v.order > newest.order then newest = v end
    end
  end
  return left, newest, was
end
