-- Queues: the waits that an item must not pass.

-- queues returns a table by resource, for many resources. Mostly it has the first member of each
-- queue, followed by false. If reading all queues at once is cheaper, it has all members of each,
-- followed by true. For few resources it returns nil. A bundle is sorted, so its neighbors begin
-- alike: one range of the queues covers GROUP of them, and usually none has a waiter.
local function queues(names)
  local n = #names
  if n < FEW then return nil end
  local some = {}
  if n > MANY and call('ZCARD', Q) <= n then
    local members = call('ZRANGE', Q, '0', '-1')
    for i = 1, #members do
      local name = string.match(members[i], '^[^%z]*')
      some[name] = some[name] or {}
      table.insert(some[name], members[i])
    end
    looked = looked + math.floor(#members / 128)
    return some, true
  end
  for i = 1, n, GROUP do
    local last, common = math.min(i + GROUP - 1, n), names[i]
    for j = i + 1, last do
      while sub(names[j], 1, #common) ~= common do common = sub(common, 1, -2) end
    end
    local members = call('ZRANGEBYLEX', Q, '[' .. common, '(' .. common .. '\255', 'LIMIT', '0', GROUP_TEXT)
    if #members < GROUP then
      for j = #members, 1, -1 do some[string.match(members[j], '^[^%z]*')] = members[j] end
    else
      for j = i, last do
        local name = names[j]
        some[name] = call('ZRANGEBYLEX', Q, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', '0', '1')[1]
      end
    end
  end
  return some, false
end

-- announce tells one client that waits for the bundle of a hold until when that rests, so that it
-- calls then: its last reply names an entry of the timer wheel that may be due later. The desk is
-- told for a wait of the space. A script looks for the waits of some holds, and in each queue at
-- some waits: without a message, clients learn of the entry from their next renewals.
function S.announce(hold, rest)
  if searched > WIDEST or call('ZCARD', Q) == 0 then return end
  local names = bundle(hold, H_ITEMS)
  searched = searched + #names / 4
  local some = queues(names)
  for i = 1, #names do
    local waits = {}
    if not some or some[names[i]] then
      waits = call('ZRANGEBYLEX', Q, '[' .. names[i] .. '\0', '(' .. names[i] .. '\1', 'LIMIT', '0', PAGE_TEXT)
    end
    for j = 1, #waits do
      local session = S.wait(string.match(waits[j], '[^%z]*$'))[W_SESSION]
      if session == '@' then session = call('HGET', META, 'desk') end
      if session and ends(session) then return notify(session, 'd' .. US .. format('%.0f', rest - now)) end
    end
    searched = searched + #waits
    if searched > WIDEST then return end
  end
end

-- aged returns whether the wait of a member of a resource's queue is old enough to bar others.
local function aged(name, member) return tonumber(string.match(member, '^.%d*%z(%d*)', #name + 19)) <= now end

-- older returns the request of a wait that an item must not pass, or nil: an old wait reserves
-- what it wants of the resource. A plain request must not pass earlier tickets (nil: it is new),
-- except those of nested requests that arrived when it was old already. A nested one must not
-- pass the waits, plain or nested, that were old when it arrived, except those that depend on a
-- hold that it is nested in, or on itself.
--
-- self: the request's own wait, if any. The function examines the LOOK oldest waits, and for a
-- nested request also the LOOK oldest plain ones: younger ones became aged no earlier. first: the
-- first member of the queue, for a request of many names. Then the function examines the oldest
-- nested and the oldest plain wait, and the others only if one of these is old, while the script
-- has time for it.
local function older(mode, name, n, owner, ticket, nested, self, first)
  local from, upto = '[' .. name .. '\0', ticket and '(' .. name .. '\0' .. ticket or '(' .. name .. '\1'
  if nested then upto = '(' .. name .. '\1' end
  local old = first and aged(name, first)
  if first then
    if not old and sub(first, #name + 2, #name + 17) < NESTED then
      first = call('ZRANGEBYLEX', Q, from .. NESTED, upto, 'LIMIT', '0', '1')[1]
      old = first and aged(name, first)
    end
    if not old or turns > TURNS then return nil end
  end
  local members = call('ZRANGEBYLEX', Q, from, upto, 'LIMIT', '0', LOOK_TEXT)
  if #members == 0 then return nil end
  if nested and #members == LOOK then
    local last = string.match(members[LOOK], '^[^%z]*%z([^%z]*)')
    local more = call('ZRANGEBYLEX', Q, last < NESTED and from .. NESTED or '(' .. members[LOOK], upto, 'LIMIT', '0', LOOK_TEXT)
    for i = 1, #more do members[#members + 1] = more[i] end
  end
  turns = turns + #members
  local room, most = nil, 0
  if mode == 'p' then
    local used
    used, most = permits(owner)
    room = most - used - n
  elseif mode == 'c' then
    room = n - 1 - (owner and sub(owner, 1, 1) == 's' and sub(owner, 2) or 0)
  end
  for i = 1, #members do
    local turn, other, want, reserve, id = string.match(members[i], '^[^%z]*%z([^%z]*)%z(.)(%d*)%z([^%z]*)%z(.*)$')
    reserve = tonumber(reserve)
    -- A request for more permits than declared, or for permits where none are declared, is never
    -- granted.
    local counts = reserve <= now and (mode ~= 'p' or other == 'p') and (other ~= 'p' or tonumber(want) <= most)
    local alone = mode == 'x' or other == 'x'
    if counts and (alone or room) then
      if nested then
        counts = reserve < (self and tonumber(self[W_SINCE]) or now) and not (spent > SEARCH or leads(S.wait(id), nested, self and self.id))
      elseif self and turn < NESTED then
        counts = tonumber(S.wait(id)[W_SINCE]) <= tonumber(self[W_RESERVE])
      end
      if counts and alone then return id end
      if counts then
        room = room - (mode == 'p' and want or 1)
        if room < 0 then return id end
      end
    end
  end
  return nil
end
