-- Holds: occupying a bundle and granting it.

-- occupy takes a free bundle for x<hold> or o<request>.
local function occupy(items, tag)
  local all, modes, numbers = parted(items)
  local slots, n, names, shared = {}, 0, {}, {}
  for i = 1, #all do
    if modes[i] == 'x' then
      slots[n + 1], slots[n + 2] = all[i], tag
      n = n + 2
    else
      shared[#shared + 1] = i
      names[#names + 1] = all[i]
    end
  end
  if #shared > 0 then
    local members, mark = {}, '\0' .. tag
    local owners = call('HMGET', OWN, unpack(names))
    for i = 1, #shared do
      local owner = owners[i]
      if modes[shared[i]] == 'p' then
        local used, limit, version = permits(owner)
        owner = format('p%d:%d:%s', used + numbers[shared[i]], limit, version)
      else
        owner = format('s%d', owner and sub(owner, 2) + 1 or 1)
      end
      slots[n + 1], slots[n + 2] = names[i], owner
      n = n + 2
      members[2 * i - 1], members[2 * i] = '0', '~r' .. names[i] .. mark
    end
    call('ZADD', IDX, unpack(members))
  end
  call('HSET', OWN, unpack(slots))
end

-- grant grants a bundle: it draws the token and writes occupation and hold. The caller has checked
-- that the whole bundle is free.
local function grant(id, session, info, items, limits)
  local token = draw(micros, 1)
  occupy(items, 'x' .. id)
  limits = limits or ''
  call('ZADD', HOLD, '0', H_TEXT{SESSION = session .. '\0' .. id; TOKEN = token; SINCE = ms; LIMITS = limits; INFO = info; ITEMS = concat(items, US)})
  local most = limit(limits)
  if most > 0 then call('ZADD', EXP, format('%.0f', now + most), 'm' .. id) end
  return token
end

-- held returns a hold's record with the session as its first field, and the member; or nil. A
-- resting hold belongs to @.
local function held(id)
  local session = string.match(id, '^(.*)%.[^.]*$') or ''
  local from = session .. '\0' .. id
  local member = call('ZRANGEBYLEX', HOLD, '[' .. from .. '\31', '(' .. from .. '\32', 'LIMIT', '0', '1')[1]
  if not member then
    session, from = '@', '@\0' .. id
    member = call('ZRANGEBYLEX', HOLD, '[' .. from .. '\31', '(' .. from .. '\32', 'LIMIT', '0', '1')[1]
  end
  if not member then return nil end
  local hold = fields(member)
  hold[H_SESSION] = session
  return hold, member
end

-- valid reports whether a hold belongs to its session: granted, and neither released nor resting.
local function valid(id)
  local hold = held(id)
  return hold ~= nil and hold[H_SESSION] ~= '@'
end

-- freePlain releases a hold if it is exclusive, without limits, not revoked, nothing is due and no
-- request waits for any of its names, and returns whether it did. It needs no function of the slow
-- path.
local function freePlain(id)
  local hold, member = held(id)
  if not hold or hold[H_SESSION] == '@' or hold[H_LIMITS] ~= '' or hold[H_ASKED] ~= '' or not quiet() then return false end
  local names, items = bundle(hold, H_ITEMS)
  for i = 1, #items do
    if sub(items[i], 1, 1) ~= 'x' then return false end
  end
  return noneIn(awaited(names, 1, #names), names, 1, #names) and giveBack(ms, names, 1, member)
end
