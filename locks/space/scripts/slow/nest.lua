-- Nested requests: the waits inside a hold.

-- sharers returns the sharers of a resource: kind x for holds, o for offers.
local function sharers(name, kind, limit)
  local from = '~r' .. name .. '\0' .. kind
  local members = call('ZRANGEBYLEX', IDX, '[' .. from, '(' .. from .. '\255', 'LIMIT', '0', limit)
  for i = 1, #members do members[i] = sub(members[i], #from + 1) end
  return members
end

-- inside returns the waiting requests that are nested in a hold, or nil if there are none. While
-- the whole space has few of them, one command reads them all.
local function inside(hold)
  if not web then
    web, spent = {}, spent + 1
    local n = call('ZLEXCOUNT', IDX, '[~u', '(~v')
    if n <= SEARCH / 4 then
      web.all = {}
      local members = call('ZRANGEBYLEX', IDX, '[~u', '(~v')
      spent = spent + n / 8
      for i = 1, n do
        local outer, id = string.match(members[i], '^~u([^%z]*)%z(.*)$')
        web.all[outer] = web.all[outer] or {}
        table.insert(web.all[outer], id)
      end
    end
  end
  if web.all then return web.all[hold] end
  if web[hold] == nil then
    spent = spent + 1
    local from, found = '~u' .. hold .. '\0', nil
    local members = call('ZRANGEBYLEX', IDX, '[' .. from, '(~u' .. hold .. '\1', 'LIMIT', '0', SEARCH)
    for i = 1, #members do
      found = found or {}
      found[i] = sub(members[i], #from + 1)
    end
    web[hold] = found or false
  end
  return web[hold] or nil
end

-- sharing returns those of the holds sharing a resource that are in a set or have nested waits.
-- It also returns the number of the others, which end by themselves. A search that runs out of
-- time sets S.cut.
local function sharing(name, set)
  local from = '~r' .. name .. '\0x'
  local n, found = call('ZLEXCOUNT', IDX, '[' .. from, '(' .. from .. '\255'), {}
  inside('')
  spent = spent + 1
  if web.all and n > PAGE then -- otherwise it is cheaper to read them
    local function look(id)
      spent = spent + 0.5
      if call('ZSCORE', IDX, from .. id) then found[#found + 1] = id end
    end
    for id in pairs(web.all) do look(id) end
    for id in pairs(set) do
      if not web.all[id] then look(id) end
    end
    table.sort(found)
  else
    local most = math.max(PAGE, math.floor(SEARCH - spent))
    local members = sharers(name, 'x', most)
    if #members == most and n > most then S.cut = true end
    for i = 1, #members do
      if set[members[i]] or inside(members[i]) then found[#found + 1] = members[i] end
    end
  end
  return found, n - #found
end

-- leads follows a wait to everything that it waits for, or may have to wait for: holds, the waits
-- nested in these, and the waits that come before one of those. With a set of holds, or a request
-- of its own, it returns whether it reaches one of them; otherwise the nested waits that it
-- meets. It ignores amounts. If it runs out of time, it sets S.cut and returns true.
local function leads(start, set, own)
  local seen, stack, met = {}, {start}, {}
  local function push(wait)
    if wait[W_TICKET] < NESTED and not seen[wait.id] then met[#met + 1] = wait end
    if wait.id ~= start.id and not seen[wait.id] then stack[#stack + 1] = wait end
    seen[wait.id] = true
  end
  local function pass(id) -- returns whether a hold is in the set
    if seen['x' .. id] then return false end
    seen['x' .. id] = true
    if set and set[id] then return true end
    local waits = inside(id)
    for i = 1, waits and #waits or 0 do
      if not seen[waits[i]] then
        spent = spent + 1
        local wait = S.wait(waits[i])
        if wait then push(wait) end
      end
    end
    return false
  end
  while #stack > 0 do
    local wait = table.remove(stack)
    if wait.id == own then return true end
    local nested = within(wait[W_UNDER])
    for i = W_ITEMS, #wait do
      if spent > SEARCH then
        S.cut = true
        return true, met
      end
      local name, mode = named(wait[i]), sub(wait[i], 1, 1)
      local owner = call('HGET', OWN, name)
      local kind = owner and sub(owner, 1, 1)
      spent = spent + 2
      if mode ~= 'p' and (kind == 'x' or kind == 'u') and pass(sub(owner, 2)) then return true end
      if kind == 'p' and mode == 'p' or (kind == 's' or kind == 'u') and (mode == 'x' or mode == 'c') then
        local holds = sharing(name, set or {})
        for j = 1, #holds do
          if not (mode == 'x' and nested and nested[holds[j]]) and pass(holds[j]) then return true end
        end
      end
      local from, upto = '[' .. name .. '\0', '(' .. name .. '\0' .. wait[W_TICKET]
      if nested then upto = '(' .. name .. '\1' end
      local members = call('ZRANGEBYLEX', Q, from, upto, 'LIMIT', '0', SEARCH)
      spent = spent + #members / 4
      if #members == SEARCH then S.cut = true end
      for j = 1, #members do
        local turn, other, reserve, id = string.match(members[j], '^[^%z]*%z([^%z]*)%z(.)%d*%z([^%z]*)%z(.*)$')
        if (mode == 'p') == (other == 'p') and (mode ~= 's' or other == 'x') and
            (not nested or tonumber(reserve) < tonumber(wait[W_SINCE])) and (not seen[id] or id == start.id) then
          spent = spent + 1
          if spent > SEARCH then break end
          local before = S.wait(id)
          if turn >= NESTED or tonumber(before[W_SINCE]) <= tonumber(wait[W_RESERVE]) then push(before) end
        end
      end
    end
  end
  return S.cut, met
end

-- reach makes settle() examine the nested waits that a wait leads to. Because of it, one that
-- bars them may now wait for them, and then it no longer bars them.
function S.reach(wait)
  if S.nests == nil then S.nests = call('ZRANGEBYLEX', IDX, '[~u', '(~v', 'LIMIT', '0', '1')[1] ~= nil end
  if not S.nests then return end
  S.cut = false
  local _, met = leads(wait)
  for i = 1, #met do free(bundle(met[i], W_ITEMS), met[i][W_TICKET]) end
  if S.cut then later({'G'}) end -- then examine all queues
end
