-- The end of waits and of offers.

local function forget(id, wait) -- removes a wait from the index
  call('ZREM', IDX, wait[W_SESSION] .. '\0w\0' .. id, '@\0o\0' .. id)
  if class(id, wait) then call('ZREM', IDX, class(id, wait)) end
  for under in string.gmatch(wait[W_UNDER], '[^ ]+') do
    call('ZREM', IDX, '~u' .. under .. '\0' .. id)
    web = nil
  end
  call('ZREM', EXP, 'w' .. id, 'o' .. id)
  call('HDEL', WAIT, id)
end

-- drop ends a wait in any state, including its offer, and returns its record, or nil without one.
function S.drop(id)
  local wait = S.wait(id)
  if not wait then return nil end
  local names, items = bundle(wait, W_ITEMS)
  forget(id, wait)
  if wait[W_STATE] == 'w' then
    call('ZREM', Q, unpack(queued(wait, id)))
    unbar(names, wait) -- it may have kept others from passing
  elseif wait[W_STATE] == 'o' then
    vacate(items, 'o' .. id)
  end
  return wait
end

-- lapse ends an offer that was not taken: others may use the bundle, the wait keeps its ticket.
function S.lapse(id)
  local wait = S.wait(id)
  if not wait or wait[W_STATE] ~= 'o' then return end
  local _, items = bundle(wait, W_ITEMS)
  call('ZREM', EXP, 'o' .. id)
  wait[W_STATE] = 'l'
  store(id, wait)
  vacate(items, 'o' .. id)
end

-- dismiss makes a waiting request ask again that can never be granted as it is: the reply will
-- say why. A session's wait is dropped. A wait of the space leaves the queues like a lapsed
-- offer, and the desk is notified as of an offer.
function S.dismiss(wait)
  local id = wait.id
  if wait[W_SESSION] ~= '@' then
    S.drop(id)
    if ends(wait[W_SESSION]) then S.inform(wait[W_SESSION], 'a', id) end
    return
  end
  if wait[W_STATE] == 'w' then
    call('ZREM', Q, unpack(queued(wait, id)))
    unbar(bundle(wait, W_ITEMS), wait)
  end
  wait[W_STATE] = 'l'
  store(id, wait)
  call('ZADD', IDX, '0', '@\0o\0' .. id)
  S.offers[#S.offers + 1] = id
end
