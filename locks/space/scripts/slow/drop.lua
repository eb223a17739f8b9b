-- The end of waits and of offers.

-- obstacle returns what keeps a bundle from a wait: a resource that is taken, and the ID and the
-- info of the first hold or offer on it; or nil.
local function obstacle(items)
  local names, modes, wants = parted(items)
  local owners = call('HMGET', OWN, unpack(names))
  for i = 1, #names do
    local owner, id = owners[i] or '', nil
    local kind = sub(owner, 1, 1)
    if kind == 'x' or kind == 'u' or kind == 'o' then
      id = sub(owner, 2)
    elseif kind == 's' and modes[i] ~= 's' or kind == 'p' then
      local used, most = 0, 0
      if kind == 'p' then used, most = permits(owner) end
      local from = '~r' .. names[i] .. '\0x'
      local first = used + (kind == 'p' and wants[i] or 1) > most and call('ZRANGEBYLEX', IDX, '[' .. from, '(' .. from .. '\255', 'LIMIT', '0', '1')[1]
      id = first and sub(first, #from + 1)
    end
    if id then
      local hold = kind == 'o' and S.wait(id) or held(id)
      return names[i], id, hold and hold[kind == 'o' and W_INFO or H_INFO] or ''
    end
  end
end

-- forget removes a wait from the index, and keeps how it has ended: see StoredEntry. how: the last
-- letter of its field How. Then what blocked the wait: the resource, or nil, and the ID and the
-- info of the hold or request.
local function forget(id, wait, how, resource, by, info)
  call('ZREM', IDX, wait[W_SESSION] .. '\0w\0' .. id, '@\0o\0' .. id)
  if class(id, wait) then call('ZREM', IDX, class(id, wait)) end
  for under in string.gmatch(wait[W_UNDER], '[^ ]+') do
    call('ZREM', IDX, '~u' .. under .. '\0' .. id)
    web = nil
  end
  call('ZREM', EXP, 'w' .. id, 'o' .. id)
  call('HDEL', WAIT, id)
  -- last, since a full Redis refuses it before the first removal
  local run = info and string.match(info, '"run":"([^"]*)"') or ''
  local blocker = resource and concat({resource, by, run}, '\30') or ''
  if string.find(wait[W_INFO], '"run":"' .. sub(id, 2) .. '"}', 1, true) then id = sub(id, 1, 1) end
  keepEnd(ms, 'w' .. how, H_TEXT{SESSION = '\0' .. id; SINCE = wait[W_SINCE]; ASKED = blocker; INFO = wait[W_INFO]; ITEMS = concat(wait, US, W_ITEMS)})
end

-- drop ends a wait in any state, including its offer, and returns its record, or nil without one.
-- how, and what blocked it, are as for forget: nil for a wait that is canceled, and for what blocks
-- it now.
function S.drop(id, how, resource, by, info)
  local wait = S.wait(id)
  if not wait then return nil end
  local names, items = bundle(wait, W_ITEMS)
  if not resource and how ~= 'g' and wait[W_STATE] ~= 'o' then resource, by, info = obstacle(items) end
  forget(id, wait, how or 'k', resource, by, info)
  if wait[W_STATE] == 'w' then
    call('ZREM', Q, unpack(queued(wait, id)))
    unbar(names, wait) -- it may have kept others from passing
  elseif wait[W_STATE] == 'o' then
    vacate(items, 'o' .. id, wait[W_INFO])
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
  vacate(items, 'o' .. id, wait[W_INFO])
end

-- dismiss makes a waiting request ask again that can never be granted as it is: the reply will
-- say why. A session's wait is dropped. A wait of the space leaves the queues like a lapsed
-- offer, and the desk is notified as of an offer.
function S.dismiss(wait)
  local id = wait.id
  if wait[W_SESSION] ~= '@' then
    S.drop(id, 'f')
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
