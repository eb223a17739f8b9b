-- Classes of waits that are kept back.

-- kept reports whether a class of the space's waits gets no offers. The list is read once, but
-- see S.keep.
local function kept(name)
  if not S.back then
    S.back = {}
    for other in string.gmatch(keptBack(), '[^\31]+') do S.back[other] = true end
  end
  return S.back[name]
end

-- obey puts a wait of the space into its queues if its class may get offers, else takes it out.
local function obey(id, wait)
  local names, items = bundle(wait, W_ITEMS)
  local state = kept(wait[W_LIMITS]) and 'k' or 'w'
  if state == 'w' and wait[W_STATE] == 'k' and S.unfit(items) then
    S.dismiss(wait) -- the limit was lowered meanwhile
  elseif wait[W_STATE] ~= state and (wait[W_STATE] == 'w' or wait[W_STATE] == 'k') then
    wait[W_STATE] = state
    store(id, wait)
    if state == 'k' then
      call('ZREM', Q, unpack(queued(wait, id)))
    else
      enter(wait, id)
      S.reach(wait)
    end
    unbar(names, wait)
  end
end

-- align brings the waits of a class into line with it: out of all queues, so that they block no
-- request and cost nothing, or back to their old places. It handles at most `left` of them, and
-- returns how many it handled.
local function align(name, ticket, left)
  local members = {}
  if left > 0 then
    members = call('ZRANGEBYLEX', IDX, '[~k' .. name .. '\0' .. ticket, '(~k' .. name .. '\1', 'LIMIT', '0', left)
  end
  for i = 1, #members do
    local at, id = string.match(members[i], '^[^%z]*%z([^%z]*)%z(.*)$')
    if #freed >= NAMES then -- the rest begins with this one
      left = i - 1
      ticket = at
      break
    end
    obey(id, S.wait(id))
    ticket = at .. '\1'
  end
  if left <= #members then
    call('ZADD', EXP, ms, 'k' .. name .. '\0' .. ticket)
    S.more = true
  end
  return math.min(left, #members)
end

-- move gives a wait of the space another class. The wait keeps its ticket, and steps back if the
-- new class gets no offers.
function S.move(id, name)
  local wait = S.wait(id)
  if not wait or wait[W_SESSION] ~= '@' or wait[W_LIMITS] == name then return end
  if class(id, wait) then call('ZREM', IDX, class(id, wait)) end
  wait[W_LIMITS] = name
  if class(id, wait) then call('ZADD', IDX, '0', class(id, wait)) end
  store(id, wait)
  obey(id, wait)
end

-- among returns waits of a class in the order of their tickets, `most` of them, and the place
-- from which to continue: '' to begin, and after the last one.
function S.among(name, from, most)
  from = from == '' and '[~k' .. name .. '\0' or '(' .. from
  local members, ids = call('ZRANGEBYLEX', IDX, from, '(~k' .. name .. '\1', 'LIMIT', '0', most), {}
  for i = 1, #members do ids[i] = string.match(members[i], '^[^%z]*%z[^%z]*%z(.*)$') end
  return ids, #members == tonumber(most) and members[#members] or ''
end

-- keep sets which classes of the space's waits get no offers. Their waits step back, and others
-- may pass them. When their class is let go, they return to their old places. It returns whether
-- anything changed.
function S.keep(names)
  local before, text = keptBack(), concat(names, US)
  if text == before then return false end
  -- The first write is a removal, so that a full Redis does not refuse the next one.
  call('HDEL', META, 'kept')
  if text ~= '' then call('HSET', META, 'kept', text) end
  S.back = nil
  local changed, left = {}, HOLDS
  for name in string.gmatch(before, '[^\31]+') do changed[name] = true end
  for i = 1, #names do changed[names[i]] = not changed[names[i]] or nil end
  for name in pairs(changed) do left = left - align(name, '', left) end
  return true
end
