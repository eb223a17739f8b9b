-- Rivals: the holds and offers in the way of a hold that is re-asserted.

-- rivals returns the holds in the way of an item, and the offers in its way, which yield to any
-- hold. It returns nil if nothing can make room for the item.
local function rivals(item, nested)
  local name, n = named(item)
  local mode, owner = sub(item, 1, 1), call('HGET', OWN, name)
  local kind, holds, offers = owner and sub(owner, 1, 1), {}, {}
  if kind == 'x' or kind == 'u' then
    holds[1] = sub(owner, 2)
  elseif kind == 'o' then
    offers[1] = sub(owner, 2)
  elseif kind == 'p' and mode ~= 'p' then
    return nil -- it was declared since
  end
  if (kind == 's' or kind == 'u') and (mode == 'x' or mode == 'p') then
    local others = sharers(name, 'x', -1)
    for i = 1, #others do
      if not (nested and nested[others[i]]) then holds[#holds + 1] = others[i] end
    end
    offers = sharers(name, 'o', -1)
  elseif kind == 'p' then
    local used, most, version = permits(owner)
    local over = used + n - most
    if grown(version) or over <= 0 then return holds, offers end
    -- Too many: the holders with the lowest tokens yield.
    offers = sharers(name, 'o', -1)
    for i = 1, #offers do
      local wait = S.wait(offers[i])
      for j = W_ITEMS, #wait do
        local other, m = named(wait[j])
        if other == name then over = over - m end
      end
    end
    local others, weak = sharers(name, 'x', -1), {}
    for i = 1, #others do
      local hold = held(others[i])
      for j = H_ITEMS, #hold do
        local other, m = named(hold[j])
        if other == name then weak[#weak + 1] = {tonumber(hold[H_TOKEN]), others[i], m} end
      end
    end
    table.sort(weak, function(a, b) return a[1] < b[1] end)
    for i = 1, #weak do
      if over <= 0 then break end
      holds[#holds + 1] = weak[i][2]
      over = over - weak[i][3]
    end
    if over > 0 then return nil end
  end
  return holds, offers
end

-- admit restores a hold that Redis has lost, unless a stronger one is in the way.
function S.admit(hid, record, member, nested)
  local _, items = bundle(record, H_ITEMS)
  local holds, offers, over = {}, {}, {}
  for i = 1, #items do
    local others, waits = rivals(items[i], nested)
    if not others then return false end
    for j = 1, #others do
      if tonumber(held(others[j])[H_TOKEN]) >= tonumber(record[H_TOKEN]) then return false end
      holds[#holds + 1] = others[j]
    end
    for j = 1, #waits do offers[#offers + 1] = waits[j] end
  end
  for i = 1, #holds do -- one may be in the way twice
    if S.free(holds[i], 'l', true) then
      local whose = string.match(holds[i], '^(.*)%.[^.]*$') or ''
      if ends(whose) then
        S.inform(whose, 'r', holds[i], 'f', '{"reason":"after Redis lost data, another worker proved to hold a part of it"}')
      end
    end
  end
  for i = 1, #offers do S.lapse(offers[i]) end
  for i = 1, #items do
    local name, n = named(items[i])
    local mode, owner = sub(items[i], 1, 1), call('HGET', OWN, name)
    if mode == 'x' and owner then
      over[#over + 1] = name -- a hold that it is nested in shares it
    elseif mode == 'p' then
      local used, _, version = 0, nil, '-1'
      if owner then used, _, version = permits(owner) end
      if grown(version) then call('HSET', OWN, name, format('p%d:%d:-1', used, used + n)) end
    end
  end
  occupy(items, 'x' .. hid)
  for i = 1, #over do call('HSET', OWN, over[i], 'u' .. hid) end
  return true
end
