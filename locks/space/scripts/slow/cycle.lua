-- Cycle: requests that would wait for themselves.

-- cycle returns the circle in which a nested request would wait for itself, or nil. The circle is
-- a list of resource, hold, resource, hold...: the request waits for the first resource, which
-- the first hold has; a request nested in that hold waits for the second; the last hold is one
-- that the request is nested in. The second result are the waits along that circle.
--
-- It goes from hold to hold, through the waits nested in them, and strikes out the holds that end
-- by themselves: those without nested waits, those that rest, and those with nested waits that
-- all get what they want once the struck-out holds have ended. So permits that another request
-- will return make no circle. It stops as soon as the request itself gets what it wants this way.
-- A hold that is left never ends by itself.
--
-- An upgrade keeps every request out. The share below it keeps out those that the share alone
-- would. So neither the end of an upgrade nor Downgrade closes a circle. A new wait can, and so
-- can a lowered limit, see untie.
--
-- If more is left to examine than one script may (S.cut), the rest counts as holds that never
-- end: a request that is refused needlessly can be made again, but one that waits in a circle
-- never ends by itself. Then the list ends where the search did.
function S.cycle(items, under)
  local nested = within(under)
  local asks, ended, stack, needsOf, blockedBy, rests, strike, examine, wayBack = search(nested)
  S.cut = false

  for id in pairs(nested) do
    if rests(id) then nested[id] = nil end
  end
  local first = needsOf(items, within(under))
  examine(first)
  while #stack > 0 and blockedBy(first) do
    local id, of = unpack(table.remove(stack))
    local needed = blockedBy(of.needs)
    if not needed then
      of.needs = {} -- its holders matter no more, until another need arises
    elseif not asks[id] and not ended[id] and not nested[id] then
      if spent > SEARCH then
        S.cut = true
        break
      end
      asks[id] = {}
      local ids = inside(id) or {}
      for i = 1, #ids do
        spent = spent + 1
        local wait = S.wait(ids[i])
        if wait and ends(wait[W_SESSION]) then
          local _, wanted = bundle(wait, W_ITEMS)
          local list = needsOf(wanted, within(wait[W_UNDER]) or {})
          for j = 1, #list do
            list[j][4] = ids[i]
            list[j][1].wanted[id] = true
            table.insert(asks[id], list[j])
          end
        end
      end
      if blockedBy(asks[id]) and not rests(id) then examine(asks[id]) else strike(id) end
    end
  end
  if not blockedBy(first) then return nil end

  local step = wayBack(first)
  if not step then return nil end
  local path, waiting = {}, {}
  while step do
    table.insert(path, 1, step[1])
    table.insert(path, 1, step[2])
    waiting[#waiting + 1] = step[4]
    step = step[3]
  end
  return path, waiting
end
