-- Permits that were declared or whose limit was lowered.

-- untie examines the requests that wait for permits, from a ticket on, after the permits were
-- declared or their limit was lowered. Requests for more permits than declared, or for the
-- resource in another mode, are dismissed. Others may wait for themselves now. Of each circle the
-- youngest wait is taken out, and its session is notified to ask again. The reply is then the
-- circle, or shows that it no longer exists.
function S.untie(name, ticket)
  local owner = call('HGET', OWN, name)
  if not owner or sub(owner, 1, 1) ~= 'p' then return end
  local _, most = permits(owner)
  local members = call('ZRANGEBYLEX', Q, '[' .. name .. '\0' .. ticket, '(' .. name .. '\1', 'LIMIT', '0', LOOK_TEXT)
  for i = 1, #members do
    local mode, n, id = string.match(members[i], '^[^%z]*%z[^%z]*%z(.)(%d*)%z[^%z]*%z(.*)$')
    if mode ~= 'p' or tonumber(n) > most then S.dismiss(S.wait(id)) end
  end
  for i = 1, #members do
    local at, id = string.match(members[i], '^[^%z]*%z([^%z]*)%z.%d*%z[^%z]*%z(.*)$')
    if at >= NESTED then break end
    if spent > SEARCH / 2 then
      later({'c' .. name .. '\0' .. at})
      return
    end
    local wait = S.wait(id)
    while wait do
      local _, items = bundle(wait, W_ITEMS)
      local path, waiting = S.cycle(items, wait[W_UNDER])
      if not path then break end
      local youngest = wait
      for j = 1, #waiting do
        local other = S.wait(waiting[j])
        if other[W_TICKET] > youngest[W_TICKET] then youngest = other end
      end
      S.drop(youngest.id, 'd')
      if ends(youngest[W_SESSION]) then S.inform(youngest[W_SESSION], 'a', youngest.id) end
      wait = youngest.id ~= id and S.wait(id)
    end
  end
  if #members == LOOK then later({'c' .. name .. '\0' .. string.match(members[LOOK], '^[^%z]*%z([^%z]*)') .. '\1'}) end
end
