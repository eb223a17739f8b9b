-- assert re-asserts what a session holds, in pages, after the space has lost some or all of its
-- writes.
-- ARGV: 1 session  2 lease, ms  3 card  4 and 5 the ID and epoch that it received, '' for an empty
--         space
--       6 an ID and a format for an empty space, as for establish
--       7 and 8 the length of a grace period, as in greet
--       9 the highest token that the session has seen  10 1: this is the last page, else 0
--       11... per hold, in the order of their tokens: its member in the key hold, as it was
--         granted; the holds that it is nested in, joined by spaces
-- Replies:
--   ok, id, epoch, ms of the grace period left, then the holds of this page that lost to others
--   again, id, epoch: the space is not, or no longer, at that ID and epoch: begin with the first
--     page
--   late: the grace period is over, others may have been granted what the session holds
-- Of two holds on one resource the one with the higher token wins; the other holder is notified.
-- The session is renewed only after its last page was accepted. A hold in Redis that is not
-- asserted is a stray: the session releases it, as always. Sending it twice changes nothing more.
-- The first write is a removal, of nothing, so that a full Redis does not refuse it.
local session = ARGV[1]
notice(ARGV[7], ARGV[8])
local id, epoch, lost = unpack(call('HMGET', META, 'id', 'epoch', 'lost'))
if ARGV[4] ~= (id or '') or ARGV[5] ~= (epoch or '') then return {'again', id or '', epoch or ''} end
call('ZREM', EXP, '')
if not id then
  id, epoch = establish(ARGV[6])
  pause(ARGV[7], ARGV[8])
elseif not lost and call('EXISTS', SEQ) == 0 then
  -- Another client has created the space, but nothing was granted in it yet: there is still time.
  pause(ARGV[7], ARGV[8])
end
local S = space()
local left = S.grace()
if not left or not (lost or call('HEXISTS', META, 'lost') == 1) then return {'late'} end

call('ZADD', EXP, format('%.0f', now + math.max(tonumber(ARGV[2]), left)), 's' .. session)
call('HSET', META, 'card:' .. session, ARGV[3])
know(session, ARGV[2], ARGV[10] == '1' and epoch or '')
local last = call('GET', SEQ)
if ARGV[9] ~= '0' and (not last or tonumber(last) < tonumber(ARGV[9])) then call('SET', SEQ, ARGV[9]) end

-- grown reports whether a number of permits was not declared, but is the sum asserted so far.
local function grown(version) return version == '-1' end

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
    local sharers = S.sharers(name, 'x', -1)
    for i = 1, #sharers do
      if not (nested and nested[sharers[i]]) then holds[#holds + 1] = sharers[i] end
    end
    offers = S.sharers(name, 'o', -1)
  elseif kind == 'p' then
    local used, most, version = permits(owner)
    local over = used + n - most
    if grown(version) or over <= 0 then return holds, offers end
    -- Too many: the holders with the lowest tokens yield.
    offers = S.sharers(name, 'o', -1)
    for i = 1, #offers do
      local wait = S.wait(offers[i])
      for j = W_ITEMS, #wait do
        local other, m = named(wait[j])
        if other == name then over = over - m end
      end
    end
    local sharers, weak = S.sharers(name, 'x', -1), {}
    for i = 1, #sharers do
      local hold = held(sharers[i])
      for j = H_ITEMS, #hold do
        local other, m = named(hold[j])
        if other == name then weak[#weak + 1] = {tonumber(hold[2]), sharers[i], m} end
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
local function admit(hid, record, member, nested)
  local _, items = bundle(record, H_ITEMS)
  local holds, offers, over = {}, {}, {}
  for i = 1, #items do
    local others, waits = rivals(items[i], nested)
    if not others then return false end
    for j = 1, #others do
      if tonumber(held(others[j])[2]) >= tonumber(record[2]) then return false end
      holds[#holds + 1] = others[j]
    end
    for j = 1, #waits do offers[#offers + 1] = waits[j] end
  end
  for i = 1, #holds do -- one may be in the way twice
    if S.free(holds[i], false, true) then
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

-- Usually Redis lost everything that could be in the way of a hold, too. Then the hold is written
-- together with the others of its page.
local owners, looked = {}, {} -- of the names of this page, and whether that was read
local slots, members, shares = {}, {}, {}

local function owner(name)
  if not looked[name] then
    looked[name], owners[name] = true, call('HGET', OWN, name)
  end
  return owners[name]
end

-- fits returns the occupation of a name after an item of a hold is added to it; nil if something is
-- in its way.
local function fits(name, mode, n, hid)
  local by = owner(name)
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
  for name, value in pairs(slots) do
    own[n + 1], own[n + 2] = name, value
    n = n + 2
  end
  if n > 0 then
    call('HSET', OWN, unpack(own))
    call('ZADD', HOLD, unpack(members))
  end
  if #shares > 0 then call('ZADD', IDX, unpack(shares)) end
  slots, members, shares = {}, {}, {}
end

-- One read gets the occupation of all names of the page, another one the holds of the page that
-- still wait.
local pattern = '^[^%z]*%z([^\31]*)\31[^\31]*\31[^\31]*\31([^\31]*)\31[^\31]*\31[^\31]*\31(.*)$'
local holds, names, ids = {}, {}, {}
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
    if not looked[bundled[n]] then
      looked[bundled[n]] = true
      names[#names + 1] = bundled[n]
    end
  end
  ids[#ids + 1] = hid
  holds[#holds + 1] = {bundled, modes, numbers, limits}
  if not alone then
    sharing[#sharing + 1] = #ids
    marks[#marks + 1] = '~r' .. bundled[1] .. '\0x' .. hid
  end
end
local waits, present = {}, {}
if #ids > 0 then
  waits = call('HMGET', WAIT, unpack(ids))
  local read = call('HMGET', OWN, unpack(names))
  for i = 1, #names do owners[names[i]] = read[i] end
  local scores = #marks > 0 and call('ZMSCORE', IDX, unpack(marks)) or {}
  for i = 1, #marks do present[sharing[i]] = scores[i] end
end

-- last_until records the end of a hold with a max hold.
local function last_until(hid, limits)
  local most = limit(limits)
  if most > 0 then call('ZADD', EXP, format('%.0f', now + most), 'm' .. hid) end
end

-- together collects a hold if nothing is in its way, and returns whether it did.
local function together(k)
  local hid, bundled, modes, numbers, limits = ids[k], unpack(holds[k])
  if waits[k] or present[k] then return false end
  local values = {}
  for i = 1, #bundled do
    values[i] = fits(bundled[i], modes[i], numbers[i], hid)
    if not values[i] then return false end
  end
  local n, tag = #shares, '\0x' .. hid
  for i = 1, #bundled do
    local name = bundled[i]
    slots[name], owners[name] = values[i], values[i]
    if modes[i] ~= 'x' then
      shares[n + 1], shares[n + 2] = 0, '~r' .. name .. tag
      n = n + 2
    end
  end
  members[#members + 1] = 0
  members[#members + 1] = ARGV[9 + 2 * k]
  last_until(hid, limits)
  return true
end

local refused = {}
for k = 1, #ids do
  if not together(k) then
    flush()
    local hid, member, nested = ids[k], ARGV[9 + 2 * k], nil
    local record = fields(member)
    for ancestor in string.gmatch(ARGV[10 + 2 * k], '[^ ]+') do
      nested = nested or {}
      nested[ancestor] = true
    end
    local known, at = held(hid)
    local rests = known and known[1] == '@' -- as if it had been released
    -- Redis has lost the grant, and still has the wait.
    if not known then S.drop(hid) end
    if not known and not admit(hid, record, member, nested) then
      refused[#refused + 1] = hid
    elseif not known or rests then
      if rests then
        call('ZREM', HOLD, at)
        call('ZREM', EXP, 'd' .. hid)
      end
      call('ZADD', HOLD, '0', member)
      last_until(hid, record[4])
    end
    owners, looked = {}, {}
  end
end
flush()
S.reap()
S.tell()
return {'ok', id, epoch, format('%.0f', left), unpack(refused)}
