-- The order in which due runs begin.

-- goesFirst returns a run that has been due in a queue since an earlier time than this one (server
-- ms), and so goes first: its id and record, and whether its delivery is in its queue. It returns
-- nil if there is none among the oldest 264. A run that was set aside delays no delivery.
local function goesFirst(queue, at)
  local from, upto, most = '[' .. queue .. '\0', '(' .. queue .. '\0' .. pad(at), 8
  for _ = 1, 5 do
    local page, ids = call('ZRANGEBYLEX', READY, from, upto, 'LIMIT', '0', most), {}
    if #page == 0 then return nil end
    for i = 1, #page do ids[i] = string.match(page[i], '([^%z]*)$') end
    local pushed, sent = call('ZMSCORE', PUSH, unpack(ids)), call('ZMSCORE', SENT, unpack(ids))
    for i = 1, #page do
      local id, queued = ids[i], sent[i]
      local delivered = pushed[i] or queued
      local run = delivered and load(id)
      if delivered and not run then
        call('ZREM', READY, page[i]) -- no claim of it can succeed
      -- One that crashed may be put off for long, and must not delay this one. One that was offered
      -- its locks just now is about to be claimed.
      elseif run and run[R_CRASHES] == '0' and (run[R_WAITS] ~= '1' or queued) then
        return id, run, queued
      end
    end
    if #page < most then return nil end
    from, most = '(' .. page[most], 64
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
