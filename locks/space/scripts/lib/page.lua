-- A page of holds that a session re-asserts. Usually Redis lost everything that could be in the way
-- of a hold, too. Then the hold is written together with the others of its page.

local asserted = {
  owners = {}, looked = {}, -- the occupation of the names of the page, and whether it was read
  ids = {}, holds = {}, -- the IDs of its holds, and what each has
  waits = {}, present = {}, -- the holds that still wait, and those that Redis still has
  slots = {}, members = {}, shares = {}, -- will be written
}

local function ownerOf(name)
  if not asserted.looked[name] then
    asserted.looked[name], asserted.owners[name] = true, call('HGET', OWN, name)
  end
  return asserted.owners[name]
end

-- fits returns the occupation of a name after an item of a hold is added to it; nil if something is
-- in its way.
local function fits(name, mode, n, hid)
  local by = ownerOf(name)
  if mode == 'x' then return not by and 'x' .. hid or nil end
  local kind = by and sub(by, 1, 1)
  if mode ~= 'p' then
    if not by then return 's1' end
    return kind == 's' and format('s%d', sub(by, 2) + 1) or nil
  end
  if by and kind ~= 'p' then return nil end
  local used, most, version = 0, nil, '-1'
  if by then used, most, version = permits(by) end
  used = used + n
  if grown(version) then return format('p%d:%d:-1', used, used) end
  return used <= most and format('p%d:%d:%s', used, most, version) or nil
end

-- flush writes the holds that were collected.
local function flush()
  local own, n = {}, 0
  for name, value in pairs(asserted.slots) do
    own[n + 1], own[n + 2] = name, value
    n = n + 2
  end
  if n > 0 then
    call('HSET', OWN, unpack(own))
    call('ZADD', HOLD, unpack(asserted.members))
  end
  if #asserted.shares > 0 then call('ZADD', IDX, unpack(asserted.shares)) end
  asserted.slots, asserted.members, asserted.shares = {}, {}, {}
end

-- readPage splits the holds of the page. One read gets the occupation of all their names, another
-- one the holds that still wait.
local function readPage()
  local pattern = H_MATCH[[SESSION=[^%z]*%z([^\31]*) TOKEN SINCE (LIMITS) ASKED INFO (ITEMS=.*)]]
  local names = {}
  -- sharing: the holds without an exclusive name. marks: the index entry that each of them has if
  -- Redis has the hold.
  local sharing, marks = {}, {}
  for i = 11, #ARGV, 2 do
    local hid, limits, text = string.match(ARGV[i], pattern)
    local bundled, modes, numbers, alone, n = {}, {}, {}, false, 0
    for item in string.gmatch(text .. US, '([^\31]*)\31') do
      n = n + 1
      bundled[n], numbers[n] = named(item)
      modes[n] = sub(item, 1, 1)
      alone = alone or modes[n] == 'x'
      if not asserted.looked[bundled[n]] then
        asserted.looked[bundled[n]] = true
        names[#names + 1] = bundled[n]
      end
    end
    asserted.ids[#asserted.ids + 1] = hid
    asserted.holds[#asserted.holds + 1] = {bundled, modes, numbers, limits}
    if not alone then
      sharing[#sharing + 1] = #asserted.ids
      marks[#marks + 1] = '~r' .. bundled[1] .. '\0x' .. hid
    end
  end
  if #asserted.ids > 0 then
    asserted.waits = call('HMGET', WAIT, unpack(asserted.ids))
    local read = call('HMGET', OWN, unpack(names))
    for i = 1, #names do asserted.owners[names[i]] = read[i] end
    local scores = #marks > 0 and call('ZMSCORE', IDX, unpack(marks)) or {}
    for i = 1, #marks do asserted.present[sharing[i]] = scores[i] end
  end
end

-- limitUntil records the end of a hold with a max hold.
local function limitUntil(hid, limits)
  local most = limit(limits)
  if most > 0 then call('ZADD', EXP, format('%.0f', now + most), 'm' .. hid) end
end

-- together collects a hold if nothing is in its way, and returns whether it did.
local function together(k)
  local hid, bundled, modes, numbers, limits = asserted.ids[k], unpack(asserted.holds[k])
  if asserted.waits[k] or asserted.present[k] then return false end
  local values = {}
  for i = 1, #bundled do
    values[i] = fits(bundled[i], modes[i], numbers[i], hid)
    if not values[i] then return false end
  end
  local n, tag = #asserted.shares, '\0x' .. hid
  for i = 1, #bundled do
    local name = bundled[i]
    asserted.slots[name], asserted.owners[name] = values[i], values[i]
    if modes[i] ~= 'x' then
      asserted.shares[n + 1], asserted.shares[n + 2] = 0, '~r' .. name .. tag
      n = n + 2
    end
  end
  asserted.members[#asserted.members + 1] = 0
  asserted.members[#asserted.members + 1] = ARGV[9 + 2 * k]
  limitUntil(hid, limits)
  return true
end
