-- Records and items: how they are split.

-- fields splits a record.
local function fields(record)
  local out, n = {}, 0
  for field in string.gmatch(record .. US, '([^\31]*)\31') do
    n = n + 1
    out[n] = field
  end
  return out
end

-- named returns the name in an item, and the number in it, if any.
local function named(item)
  local mode = sub(item, 1, 1)
  if mode == 'x' or mode == 's' then return sub(item, 2) end
  local n, name = string.match(item, '^.(%d+):(.*)$')
  return name, tonumber(n)
end

local parts = {} -- what parted has split, by list

-- parted returns the names, the modes and the numbers of a list of items. A script asks for those
-- of one list several times, and never changes a list after the first call. An item that cannot be
-- read ends the script, before it writes.
local function parted(items)
  local known = parts[items]
  if not known then
    local names, modes, numbers = {}, {}, {}
    for i = 1, #items do
      local item = items[i]
      local mode = sub(item, 1, 1)
      modes[i] = mode
      if mode == 'x' or mode == 's' then names[i] = sub(item, 2) else names[i], numbers[i] = named(item) end
      if not names[i] then error('the item "' .. item .. '" of a bundle has no mode') end
    end
    known = {names, modes, numbers}
    parts[items] = known
  end
  return known[1], known[2], known[3]
end

-- bundle returns the names of a record's items, which begin at field `from`, and the items with
-- their modes.
local function bundle(record, from)
  local names, items = {}, {}
  for i = from, #record do
    items[#items + 1] = record[i]
    names[#names + 1] = named(record[i])
  end
  return names, items
end

-- permits splits the occupation of a declared number of permits: used, limit, version.
local function permits(owner)
  local used, limit, version = string.match(owner, '^p(%d+):(%d+):(.*)$')
  return tonumber(used), tonumber(limit), version
end

-- grown reports whether a number of permits was not declared, but is the sum asserted so far.
local function grown(version) return version == '-1' end

-- limit splits a record's limits: how long a hold is valid at most, at least, and after a crash, in
-- ms; 0 for none.
local function limit(text)
  if text == '' then return 0, 0, 0 end
  local most, least, crash = string.match(text, '^(%d+),(%d+),(%d+)$')
  return tonumber(most), tonumber(least), tonumber(crash)
end
