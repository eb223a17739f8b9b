-- Runs that wait for their bundle.

-- stopped returns for how many ms a queue was paused since an instant (server ms), and if it is
-- paused now, for how many ms.
local function stopped(queue, since)
  local total, still = 0, nil
  local kept = US .. keptBack() .. US
  for from, upto in string.gmatch(call('HGET', LEDGER, 'pauses:' .. queue) or '', '(%d+)%-(%d*)') do
    -- If the end of a pause is missing although the queue is not paused, an older build did not
    -- record it: that pause does not count.
    local open = upto == '' and string.find(kept, US .. queue .. US, 1, true)
    local ended = open and now or tonumber(upto) or 0
    total = total + math.max(0, ended - math.max(from, since))
    if open then still = now - from end
  end
  return total, still
end

-- offered makes the runs due that the lock space has offered their bundle in this script. A run
-- whose time is over does not get it: its delivery, or the sweep, ends it.
local function offered(S, list)
  while #S.offers > 0 do
    local offers = S.offers
    S.offers = {}
    for i = 1, #offers do
      local wid = offers[i]
      local id = sub(wid, 2)
      local run, broken = load(id)
      if broken then unreadable(id) end
      S.pickUp(wid)
      if run and run[R_STATE] == 'waiting' then
        if overdue(run) then S.lapse(wid) end
        due(id, run)
        pushes(list, id, run)
      end
    end
    S.settle()
  end
end

-- park sends a run to wait for its bundle, under its present ticket or the next one, and returns
-- the names in its bundle. blocker: what was in its way, a text of B_TEXT.
local function park(S, id, run, patience, blocker)
  local names, items = bundle(run, R_ITEMS)
  undue(id, run)
  run[R_STATE], run[R_WAITS] = 'waiting', '1'
  if run[R_WAITED] == '' then run[R_WAITED], run[R_BLOCKER] = ms, blocker end
  if run[R_PATIENCE] ~= '' and run[R_WAITBY] == '' then run[R_WAITBY] = format('%.0f', now + run[R_PATIENCE]) end
  save(id, run)
  watch(id, run)
  S.park('+' .. id, '@', info(id, run), items, tonumber(patience), nil, run[R_QUEUE])
  return names
end
