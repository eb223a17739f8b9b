-- The end of holds, and of what they occupied.

-- vacate frees what occupy took. info: of the hold or of the offer.
local function vacate(items, tag, info)
  local names, modes, numbers = parted(items)
  local gone, slots, members, mark = {}, {}, {}, '\0' .. tag
  local owners = call('HMGET', OWN, unpack(names))
  for i = 1, #items do
    local name, owner, mode = names[i], owners[i] or '', modes[i]
    local kind, left = sub(owner, 1, 1), 0
    if mode ~= 'x' then
      members[#members + 1] = '~r' .. name .. mark
      if kind == 's' then left = sub(owner, 2) - 1 end
    elseif kind == 'u' then -- the share below it comes back
      left = call('ZLEXCOUNT', IDX, '[~r' .. name .. '\0', '(~r' .. name .. '\1')
    end
    local value
    if mode == 'p' then
      local used, most, version = permits(owner)
      local n = numbers[i]
      value = format('p%d:%d:%s', used - n, most, version)
    elseif left > 0 then
      value = format('s%d', left)
    elseif mode == 'x' or kind == 's' then
      gone[#gone + 1] = name
    end
    if value then slots[#slots + 1], slots[#slots + 2] = name, value end
  end
  if #members > 0 then call('ZREM', IDX, unpack(members)) end
  if #gone > 0 then call('HDEL', OWN, unpack(gone)) end
  if #slots > 0 then call('HSET', OWN, unpack(slots)) end
  looked = looked + math.floor(#items / 64)
  free(names)
  local by = {sub(tag, 2), info}
  for i = 1, #names do freer[names[i]] = by end
end

-- keepHold keeps how a hold has ended: see StoredEntry. rest: until when its bundle stays taken,
-- ms, or ''.
local function keepHold(how, id, hold, rest)
  keepEnd(ms, 'h' .. how, H_TEXT{SESSION = '\0' .. id; TOKEN = hold[H_TOKEN]; SINCE = hold[H_SINCE]; LIMITS = rest; INFO = hold[H_INFO]; ITEMS = concat(hold, US, H_ITEMS)})
end

-- wake ends the rest of a hold.
local function wake(id, hold, member)
  call('ZREM', HOLD, member)
  call('ZREM', EXP, 'd' .. id)
  local _, items = bundle(hold, H_ITEMS)
  vacate(items, 'x' .. id, hold[H_INFO])
end

-- free ends a hold and returns its record, or nil without one. A hold that must last longer
-- rests: its bundle stays taken, without a session. how: the last letter of How in StoredEntry; nil
-- if its holder has released it. at_once: ignore its limits.
function S.free(id, how, at_once)
  local hold, member = held(id)
  if not hold then return nil end
  if hold[H_SESSION] == '@' then
    if at_once then wake(id, hold, member) end
    return at_once and hold or nil
  end
  call('ZREM', HOLD, member)
  local most, least, crash = limit(hold[H_LIMITS])
  if most > 0 then call('ZREM', EXP, 'm' .. id) end
  local rest = least > 0 and hold[H_SINCE] + least or 0
  if (how == 'c' or how == 'l') and crash > 0 then rest = math.max(rest, now + crash) end
  if rest > now and not at_once then
    call('ZADD', HOLD, '0', '@' .. sub(member, #hold[H_SESSION] + 1))
    call('ZADD', EXP, format('%.0f', rest), 'd' .. id)
    S.announce(hold, rest)
  else
    local _, items = bundle(hold, H_ITEMS)
    vacate(items, 'x' .. id, hold[H_INFO])
    rest = 0
  end
  how = how or hold[H_ASKED] ~= '' and 'v' or 'r'
  keepHold(how, id, hold, rest > 0 and format('%.0f', rest) or '')
  return hold
end
