-- Obstacles between a request and its bundle.

-- unfit returns why an item can never be granted as it is, and its name; otherwise nil. mode: a
-- declared permit is requested in another way, or one that is not declared. limit: more permits
-- than declared.
function S.unfit(items)
  local names, modes, numbers = parted(items)
  local owners = call('HMGET', OWN, unpack(names))
  for i = 1, #items do
    local declared = owners[i] and sub(owners[i], 1, 1) == 'p' or false
    if declared ~= (modes[i] == 'p') then return 'mode', names[i], declared and 1 or 0 end
    if declared then
      local _, most = permits(owners[i])
      if numbers[i] > most then return 'limit', names[i], most end
    end
  end
  return nil
end

-- blocked returns what keeps a request from its bundle: the resource, and x<hold>, o<request>,
-- w<request>, or l for a limit below the request. Without an obstacle it returns nil, nil and the
-- younger waits with offers that the request would beat.
--
-- self: the ID of the request's own wait, whose offer may reserve the bundle; or its record,
-- where that cannot be. ticket nil: the youngest. nested: the holds that the request is nested
-- in, as a set; their shares do not block it. first: the names in whose queues it is the first.
function S.blocked(items, ticket, self, nested, first)
  local beaten, beats = {}, {}
  local mine = type(self) == 'table' and self or self and S.wait(self)
  if mine and mine[W_STATE] == 'o' then return nil, nil, beaten end
  local names, modes, wants = parted(items)
  local owners = call('HMGET', OWN, unpack(names))

  local function beat(id) -- returns the wait that loses its offer to an older ticket
    local wait = ticket and S.wait(id)
    if not wait or ticket >= wait[W_TICKET] then return nil end
    if not beats[id] then
      beats[id] = true
      beaten[#beaten + 1] = id
    end
    return wait
  end

  -- need returns what must end before n more of a shared resource are free; nil if beaten offers
  -- suffice.
  local function need(name, n, mode)
    local offers = sharers(name, 'o', LOOK)
    local waits = {}
    for i = 1, #offers do
      local wait = S.wait(offers[i])
      waits[i] = {wait[W_TICKET], offers[i], wait}
    end
    table.sort(waits, function(a, b) return a[1] > b[1] end)
    for i = 1, #waits do
      if n <= 0 then return nil end
      local ours = 1
      for j = W_ITEMS, mode == 'p' and #waits[i][3] or 0 do
        local item, m = named(waits[i][3][j])
        if item == name then ours = m end
      end
      if beats[waits[i][2]] or beat(waits[i][2]) then n = n - ours end
    end
    if n <= 0 then return nil end
    local holds = sharers(name, 'x', 1)
    if holds[1] then return 'x' .. holds[1] end
    return waits[1] and 'o' .. waits[1][2] or 'l'
  end

  for i = 1, #items do
    local owner, mode = owners[i], modes[i]
    local kind, by = owner and sub(owner, 1, 1), nil
    if kind == 'x' or kind == 'u' then
      by = 'x' .. sub(owner, 2)
    elseif kind == 'o' then
      if not beat(sub(owner, 2)) then by = owner end
    elseif kind == 's' and mode == 'x' then
      local offers = sharers(names[i], 'o', LOOK)
      for j = 1, #offers do
        if not by and not beat(offers[j]) then by = 'o' .. offers[j] end
      end
      if #offers == LOOK then by = by or 'o' .. offers[1] end
      if not by then
        local size = 1
        for _ in pairs(nested or {}) do size = size + 1 end
        local holds = sharers(names[i], 'x', size)
        for j = 1, #holds do
          if not (nested and nested[holds[j]]) then by = by or 'x' .. holds[j] end
        end
      end
    elseif kind == 's' and mode == 'c' and sub(owner, 2) - wants[i] >= 0 then
      by = need(names[i], sub(owner, 2) - wants[i] + 1, mode)
    elseif kind == 'p' and mode == 'p' then
      local used, most = permits(owner)
      if used + wants[i] > most then by = need(names[i], used + wants[i] - most, mode) end
    elseif kind == 'p' or mode == 'p' then
      by = 'l' -- declared or undeclared since the request was checked
    end
    if by then return names[i], by end
  end
  if call('ZCARD', Q) > 0 then
    S.cut = false
    local some, whole = queues(names)
    local many = some and #names > WIDE
    if whole then many = false end
    for i = 1, #items do
      local queue, alone = true, false
      if some then queue = some[names[i]] end
      if queue and not nested then
        alone = first and first[names[i]]
        if whole and ticket then alone = alone or string.find(queue[1], names[i] .. '\0' .. ticket .. '\0', 1, true) == 1 end
      end
      local id
      if queue and not alone then
        id = older(modes[i], names[i], wants[i], owners[i], ticket, nested, mine, many and queue or nil)
      end
      if id then return names[i], 'w' .. id end
    end
  end
  return nil, nil, beaten
end
