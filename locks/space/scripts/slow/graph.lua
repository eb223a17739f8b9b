-- The search for a cycle: what holds have, and what their waits need.

-- search returns the state of S.cycle and the functions for it, given the holds that the request is
-- nested in: the needs of the waits in each hold, the holds that end by themselves, and what is
-- left to examine.
local function search(nested)
  -- pools: the shares of holds by mode and name of the resource. stuck: the pools of each hold.
  local pools, stuck, asks, ended, stack = {}, {}, {}, {}, {}

  -- pool records what some holds have of a resource: the amount of each, the sum, and the holds
  -- whose nested waits want it.
  local function pool(key, name, ids, amounts)
    local new = {name = name, ids = ids, has = {}, left = 0, wanted = {}, needs = {}}
    for i = 1, #ids do
      new.has[ids[i]] = amounts and amounts[i] or 1
      new.left = new.left + new.has[ids[i]]
      stuck[ids[i]] = stuck[ids[i]] or {}
      if ended[ids[i]] then
        new.left = new.left - new.has[ids[i]]
      else
        table.insert(stuck[ids[i]], new)
      end
    end
    pools[key] = new
    return new
  end

  local function blocks(need)
    local left = need[1].left
    if left <= need[2] then return false end
    for id in pairs(need[3] or {}) do
      if need[1].has[id] and not ended[id] then left = left - 1 end
    end
    return left > need[2]
  end

  local function blockedBy(list)
    for i = 1, #list do
      if blocks(list[i]) then return true end
    end
    return false
  end

  -- needsOf returns what a bundle waits for: pools, how much of each may stay taken, and the holds
  -- whose share does not block it.
  local function needsOf(bundled, own)
    local list = {}
    for i = 1, #bundled do
      local name, n = named(bundled[i])
      local mode = sub(bundled[i], 1, 1)
      if pools['=' .. name] == nil then
        spent = spent + 1
        pools['=' .. name] = call('HGET', OWN, name) or ''
      end
      local owner = pools['=' .. name]
      local kind = sub(owner, 1, 1)
      if mode ~= 'p' and (kind == 'x' or kind == 'u') then
        list[#list + 1] = {pools['x' .. name] or pool('x' .. name, name, {sub(owner, 2)}), 0}
      end
      if mode == 'p' and kind == 'p' then
        local used, most = permits(owner)
        local shared = pools['s' .. name]
        if not shared and used + n > most then
          local ids, others = sharing(name, nested)
          if used + n - most > others then -- otherwise the others return enough
            local amounts = {}
            for j = 1, used > #ids + others and #ids or 0 do -- otherwise each has one
              spent = spent + 1
              local hold = held(ids[j])
              for k = H_ITEMS, #hold do
                local other, m = named(hold[k])
                if other == name then amounts[j] = m end
              end
            end
            shared = pool('s' .. name, name, ids, amounts)
          end
        end
        if shared then list[#list + 1] = {shared, most - n} end
      elseif (kind == 's' or kind == 'u') and (mode == 'x' or mode == 'c') then
        local shared = pools['s' .. name] or pool('s' .. name, name, (sharing(name, nested)))
        list[#list + 1] = {shared, mode == 'c' and n - 1 or 0, mode == 'x' and own or nil}
      end
    end
    return list
  end

  local function rests(id) -- then it ends by itself
    spent = spent + 0.5
    return call('ZSCORE', EXP, 'd' .. id)
  end

  -- strike ends a hold, and those that waited only for it.
  local function strike(first)
    local list = {first}
    while #list > 0 do
      local id = table.remove(list)
      local of = stuck[id] or {}
      if not ended[id] then
        ended[id] = true
        for i = 1, #of do
          of[i].left = of[i].left - of[i].has[id]
          for other in pairs(of[i].wanted) do
            spent = spent + 1 / 16
            if not ended[other] and not nested[other] and not blockedBy(asks[other]) then list[#list + 1] = other end
          end
        end
      end
    end
  end

  local function examine(list) -- pushes what must be examined for these needs
    for i = 1, #list do
      local of = list[i][1]
      if blocks(list[i]) then
        if #of.needs == 0 then
          for j = 1, #of.ids do stack[#stack + 1] = {of.ids[j], of} end
        end
        table.insert(of.needs, list[i])
      end
    end
  end

  -- wayBack returns the shortest way back to one of the holds that the request is nested in. If the
  -- search was cut short, it returns the way to a hold that the search did not reach.
  local function wayBack(first)
    local queue, seen, at, loose = {}, {}, 1, nil
    local function follow(list, from)
      for i = 1, #list do
        local ids = list[i][1].ids
        for j = 1, blocks(list[i]) and #ids or 0 do
          local id = ids[j]
          if not ended[id] and not seen[id] and not (list[i][3] and list[i][3][id]) then
            seen[id] = true
            queue[#queue + 1] = {id, list[i][1].name, from, list[i][4]}
          end
        end
      end
    end
    follow(first, nil)
    while queue[at] do
      local step = queue[at]
      if nested[step[1]] then return step end
      if asks[step[1]] then follow(asks[step[1]], step) else loose = loose or step end
      at = at + 1
    end
    return S.cut and loose
  end

  return asks, ended, stack, needsOf, blockedBy, rests, strike, examine, wayBack
end
