-- The order in which due runs begin.

-- goesFirst returns a run that has been due in a queue since an earlier time than this one (server
-- ms), and so goes first: its id and record, and whether its delivery is in its queue. It returns
-- nil if there is none. A run that was set aside delays no delivery.
local function goesFirst(queue, at)
  local first = call('ZRANGEBYLEX', READY, '[' .. queue .. '\0', '(' .. queue .. '\1', 'LIMIT', '0', 8)
  for i = 1, #first do
    local since, id = string.match(first[i], '^[^%z]*%z([^%z]*)%z(.*)$')
    if since >= pad(at) then return nil end
    local delivered = call('ZSCORE', PUSH, id) or call('ZSCORE', SENT, id)
    local run = load(id)
    if not run then
      call('ZREM', READY, first[i]) -- no claim of it can succeed
    -- others may be put off for long, and must not delay this one
    elseif delivered and run[R_CRASHES] == '0' then
      local queued = call('ZSCORE', SENT, id)
      -- else it was offered its locks just now, and is about to be claimed
      if run[R_WAITS] ~= '1' or queued then return id, run, queued end
    end
  end
end

-- parkEarlier sends earlier ticks of a run's job to wait in front of it: those that are due, but
-- whose deliveries take longer. It returns space(), or nil if there are none.
local function parkEarlier(run, patience)
  local before, first = '(' .. run[R_JOB] .. '\0' .. pad(run[R_TICK]), '[' .. run[R_JOB] .. '\0' .. pad(1)
  -- still earlier ones were due long ago
  local earlier, S = call('ZREVRANGEBYLEX', OPEN, before, first, 'LIMIT', '0', 128), nil
  for i = #earlier, 1, -1 do
    local id = string.match(earlier[i], '([^%z]*)$')
    local tick = load(id)
    if tick and tick[R_STATE] == 'due' and tick[R_WAITS] ~= '1' and tick[R_SERIAL] == '1' then
      S = S or space()
      S.visit(park(S, id, tick, patience, B_TEXT{RESOURCE = 'job:' .. run[R_JOB]; SINCE = ms}))
    end
  end
  return S
end
