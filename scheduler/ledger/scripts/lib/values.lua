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
