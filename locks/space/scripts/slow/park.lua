-- A request that begins to wait.

-- park queues a request. If the request already has a wait (its offer lapsed, or ends here), that
-- returns to its place: ticket, age and reserve time stay. patience: how long later requests may
-- pass, ms. deadline: server ms, or nil. limits and under are as in the record, nil for none. A
-- wait of a class that is kept back steps back at once.
function S.park(id, session, info, items, patience, deadline, limits, under)
  S.lapse(id)
  local wait = S.wait(id)
  if wait and wait[W_STATE] == 'w' then return end -- it is in the queue
  local new = not wait
  if new then
    under = under or ''
    local n = call('HINCRBY', META, 'ticket', 1)
    local ticket = format('%016.0f', under == '' and 1000000000000000 + n or n)
    wait = fields(W_TEXT{SESSION = session; TICKET = ticket; SINCE = ms; STATE = 'w'; RESERVE = format('%.0f', now + patience);
      LIMITS = (limits or ''); UNDER = under; INFO = info; ITEMS = concat(items, US)})
    wait.id = id
    call('ZADD', IDX, '0', session .. '\0w\0' .. id)
    if class(id, wait) then call('ZADD', IDX, '0', class(id, wait)) end
    for hold in string.gmatch(under, '[^ ]+') do
      call('ZADD', IDX, '0', '~u' .. hold .. '\0' .. id)
      web, S.nests = nil, true
    end
    if deadline then call('ZADD', EXP, deadline, 'w' .. id) end
  end
  wait[W_STATE] = wait[W_SESSION] == '@' and kept(wait[W_LIMITS]) and 'k' or 'w'
  store(id, wait)
  if wait[W_STATE] == 'w' then
    enter(wait, id)
    if not new or wait[W_UNDER] ~= '' then S.reach(wait) end
  end
end
