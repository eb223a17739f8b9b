-- Functions that the fast paths share.

-- values returns the values of a hash for some names, in order, false for a missing one. It stops
-- when the values have more than 256 KiB, since each copy between Redis and Lua takes time: those
-- that it did not read are nil. The callers leave them to later. It reads four at a time: a larger
-- step could read too much at once, a smaller one takes more calls.
local function values(key, names)
  if #names <= 4 then return redis.call('HMGET', key, unpack(names)) end
  local list, bytes = {}, 0
  for i = 1, #names, 4 do
    local some = redis.call('HMGET', key, unpack(names, i, math.min(i + 3, #names)))
    for j = 1, #some do
      list[i + j - 1] = some[j]
      if some[j] then bytes = bytes + #some[j] end
    end
    if bytes > 262144 then break end
  end
  return list
end

-- exclusive appends the names in items, joined by \31, to a list, and returns where they begin. If
-- one is not exclusive, or the list is full, it appends none and returns nil.
local function exclusive(items, names)
  local first, fit = #names + 1, true
  for mode, name in string.gmatch(items, '\31?(.)([^\31]*)') do
    if mode ~= 'x' then fit = false end
    names[#names + 1] = name
  end
  if fit and #names <= 1000 then return first end
  for i = #names, first, -1 do names[i] = nil end
end
