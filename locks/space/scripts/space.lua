-- The lock space: what the scripts share beyond the keys. Simple functions are created at once.
-- space() creates the functions of the slow path only where they are needed.
local concat, US = table.concat, '\31'
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local now = math.floor(us / 1000)
local ms = format('%.0f', now) -- now as text

-- ends returns when a session ends, or nil if it has ended, reaped or not.
local function ends(session)
  local at = call('ZSCORE', EXP, 's' .. session)
  at = at and tonumber(at)
  return at and at > now and at or nil
end

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

-- parted returns the names, the modes and the numbers of a list of items. A script asks for those
-- of one list several times, and never changes a list after the first call. An item that cannot be
-- read ends the script, before it writes.
local parts = {}
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

-- Where the items begin in the record of a hold and of a wait.
local H_ITEMS, W_ITEMS = 7, 9

-- permits splits the occupation of a declared number of permits: used, limit, version.
local function permits(owner)
  local used, limit, version = string.match(owner, '^p(%d+):(%d+):(.*)$')
  return tonumber(used), tonumber(limit), version
end

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

-- limit splits a record's limits: how long a hold is valid at most, at least, and after a crash, in
-- ms; 0 for none.
local function limit(text)
  if text == '' then return 0, 0, 0 end
  local most, least, crash = string.match(text, '^(%d+),(%d+),(%d+)$')
  return tonumber(most), tonumber(least), tonumber(crash)
end

-- take grants a bundle: it draws the token and writes occupation and hold. The caller has checked
-- that the whole bundle is free.
local function take(id, session, info, items, limits)
  local token = format('%.0f', us)
  local last = call('SET', SEQ, token, 'GET')
  last = last and tonumber(last)
  if last and last >= us then
    token = format('%.0f', last + 1)
    call('SET', SEQ, token)
  end
  occupy(items, 'x' .. id)
  limits = limits or ''
  call('ZADD', HOLD, '0', concat({session .. '\0' .. id, token, ms, limits, '', info, concat(items, US)}, US))
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
  hold[1] = session
  return hold, member
end

-- stands reports whether a hold belongs to its session: granted, and neither released nor resting.
local function stands(id)
  local hold = held(id)
  return hold ~= nil and hold[1] ~= '@'
end

-- identity returns the server's run ID. Where that is hidden, it returns the replication ID, which
-- also changes with a restart and a promotion; nil if both are hidden. Further results are the
-- server's uptime in seconds, and an error of INFO.
local function identity()
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' then return nil, nil, info and info.err end
  local run, up = string.match(info, 'run_id:(%x+)'), tonumber(string.match(info, 'uptime_in_seconds:(%d+)'))
  if run then return run, up end
  info = redis.pcall('INFO', 'replication')
  if type(info) ~= 'string' then return nil, up, info and info.err end
  return string.match(info, 'master_replid:(%x+)'), up
end

-- pause begins a grace period, or extends the current one. It lasts `least` ms, and at least the
-- longest lease of a known session plus `margin`. A session that asserts nothing until it is over
-- has lost its holds.
local function pause(least, margin)
  local last = call('ZREVRANGEBYLEX', IDX, '(~m', '[~l', 'LIMIT', '0', '1')[1]
  local longest = last and tonumber(sub(last, 3, 11)) or 0
  local upto = now + math.max(tonumber(least), longest + margin)
  upto = format('%.0f', math.max(upto, tonumber(call('HGET', META, 'grace') or 0)))
  call('HSET', META, 'grace', upto, 'lost', '1')
  call('ZADD', EXP, '0', 'e')
  return upto
end

-- strange reports whether this server is not the one that the space knows, so that it may lack the
-- last writes.
local function strange()
  local server = call('HGET', META, 'server')
  if not server or server == '' then return false end
  local run = identity()
  return run ~= nil and run ~= server
end

-- space creates the slow path: expiring, waiting and passing on. Its invariant: after settle() no
-- waiter is grantable, except those behind a resource on the work list (S.more), which the next
-- script examines, and all of them during a grace period.
local function space()
  local S = {offers = {}, more = false}
  local OFFER = 2000 -- ms
  local NESTED = '1' -- tickets below it belong to nested requests
  -- The most that one script does: waits examined, due entries, holds and waits of ended sessions,
  -- names freed before it stops freeing more, waits of a queue read at once, and records read by
  -- searches. From MANY names on, reading all queues at once may be cheaper than reading theirs.
  local LOOK, DUE, HOLDS, NAMES, PAGE, SEARCH, MANY = 64, 64, 100, 250, 16, 500, 32
  -- The queues of a bundle of FEW names or more are read GROUP by GROUP, see queues. For a bundle
  -- of more than WIDE names, only the oldest waits in its queues are examined, and TURNS of the old
  -- ones among them, see older.
  local FEW, GROUP, WIDE, TURNS = 4, 16, 32, 500
  -- Redis formats each number that it receives, which takes as long as a short command. These are
  -- passed most often.
  local LOOK_TEXT, PAGE_TEXT, GROUP_TEXT = format('%d', LOOK), format('%d', PAGE), format('%d', GROUP)
  -- The resources to settle, each with the ticket to begin at, see unbar.
  local freed, since, front, looked = {}, {}, {}, 0
  local web, spent, turns = nil, 0, 0 -- see inside and older

  local function free(names, ticket)
    ticket = ticket or ''
    for i = 1, #names do
      local name = names[i]
      if not since[name] then freed[#freed + 1] = name end
      if not since[name] or ticket < since[name] then since[name] = ticket end
    end
  end

  -- later puts queues on the work list: entries of the timer wheel that are due at once.
  local function later(entries)
    for i = 1, #entries, 1000 do
      local args = {}
      for j = i, math.min(i + 999, #entries) do
        args[#args + 1] = ms
        args[#args + 1] = entries[j]
      end
      call('ZADD', EXP, unpack(args))
    end
    S.more = S.more or #entries > 0
  end

  -- unbar frees the queues of a wait that leaves them for the waits behind it. If the wait was old
  -- enough to bar others, it also frees them for the nested ones, whose tickets come before all
  -- others.
  local function unbar(names, wait)
    free(names, wait[2])
    if wait[2] < NESTED or tonumber(wait[5]) > now then return end
    if S.nests == nil then S.nests = call('ZRANGEBYLEX', IDX, '[~u', '(~v', 'LIMIT', '0', '1')[1] ~= nil end
    for i = 1, S.nests and #names or 0 do front[names[i]] = true end
  end

  -- vacate frees what occupy took.
  local function vacate(items, tag)
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
  end

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

  local function queued(wait, id) -- returns the queue members of a wait
    local members = {}
    for i = W_ITEMS, #wait do
      local name, n = named(wait[i])
      local mode = sub(wait[i], 1, 1) .. (n or '')
      members[#members + 1] = name .. '\0' .. wait[2] .. '\0' .. mode .. '\0' .. wait[5] .. '\0' .. id
    end
    return members
  end

  local function enter(wait, id)
    local members, args = queued(wait, id), {}
    for i = 1, #members do args[2 * i - 1], args[2 * i] = '0', members[i] end
    call('ZADD', Q, unpack(args))
  end

  local function store(id, wait) call('HSET', WAIT, id, concat(wait, US)) end

  -- within returns the holds that a request is nested in as a set, or nil if there are none.
  local function within(under)
    local set
    for id in string.gmatch(under, '[^ ]+') do
      set = set or {}
      set[id] = true
    end
    return set
  end

  function S.wait(id)
    local record = call('HGET', WAIT, id)
    record = record and fields(record)
    if record then record.id = id end
    return record
  end

  -- wake ends the rest of a hold.
  local function wake(id, hold, member)
    call('ZREM', HOLD, member)
    call('ZREM', EXP, 'd' .. id)
    local _, items = bundle(hold, H_ITEMS)
    vacate(items, 'x' .. id)
  end

  -- free ends a hold and returns its record, or nil without one. A hold that must last longer
  -- rests: its bundle stays taken, without a session. crashed: its session has ended by itself.
  -- at_once: ignore its limits.
  function S.free(id, crashed, at_once)
    local hold, member = held(id)
    if not hold then return nil end
    if hold[1] == '@' then
      if at_once then wake(id, hold, member) end
      return at_once and hold or nil
    end
    call('ZREM', HOLD, member)
    local most, least, crash = limit(hold[4])
    if most > 0 then call('ZREM', EXP, 'm' .. id) end
    local rest = least > 0 and hold[3] + least or 0
    if crashed and crash > 0 then rest = math.max(rest, now + crash) end
    if rest > now and not at_once then
      call('ZADD', HOLD, '0', '@' .. sub(member, #hold[1] + 1))
      call('ZADD', EXP, format('%.0f', rest), 'd' .. id)
      return hold
    end
    local _, items = bundle(hold, H_ITEMS)
    vacate(items, 'x' .. id)
    return hold
  end

  -- class returns the index entry of a wait of the space under its class, or nil if it has none.
  local function class(id, wait)
    return wait[1] == '@' and wait[6] ~= '' and '~k' .. wait[6] .. '\0' .. wait[2] .. '\0' .. id or nil
  end

  local function forget(id, wait) -- removes a wait from the index
    call('ZREM', IDX, wait[1] .. '\0w\0' .. id, '@\0o\0' .. id)
    if class(id, wait) then call('ZREM', IDX, class(id, wait)) end
    for under in string.gmatch(wait[7], '[^ ]+') do
      call('ZREM', IDX, '~u' .. under .. '\0' .. id)
      web = nil
    end
    call('ZREM', EXP, 'w' .. id, 'o' .. id)
    call('HDEL', WAIT, id)
  end

  -- drop ends a wait in any state, including its offer, and returns its record, or nil without one.
  function S.drop(id)
    local wait = S.wait(id)
    if not wait then return nil end
    local names, items = bundle(wait, W_ITEMS)
    forget(id, wait)
    if wait[4] == 'w' then
      call('ZREM', Q, unpack(queued(wait, id)))
      unbar(names, wait) -- it may have kept others from passing
    elseif wait[4] == 'o' then
      vacate(items, 'o' .. id)
    end
    return wait
  end

  -- lapse ends an offer that was not taken: others may use the bundle, the wait keeps its ticket.
  function S.lapse(id)
    local wait = S.wait(id)
    if not wait or wait[4] ~= 'o' then return end
    local _, items = bundle(wait, W_ITEMS)
    call('ZREM', EXP, 'o' .. id)
    wait[4] = 'l'
    store(id, wait)
    vacate(items, 'o' .. id)
  end

  -- dismiss makes a waiting request ask again that can never be granted as it is: the reply will
  -- say why. A session's wait is dropped. A wait of the space leaves the queues like a lapsed
  -- offer, and the desk is notified as of an offer.
  function S.dismiss(wait)
    local id = wait.id
    if wait[1] ~= '@' then
      S.drop(id)
      if ends(wait[1]) then S.inform(wait[1], 'a', id) end
      return
    end
    if wait[4] == 'w' then
      call('ZREM', Q, unpack(queued(wait, id)))
      unbar(bundle(wait, W_ITEMS), wait)
    end
    wait[4] = 'l'
    store(id, wait)
    call('ZADD', IDX, '0', '@\0o\0' .. id)
    S.offers[#S.offers + 1] = id
  end

  -- kept reports whether a class of the space's waits gets no offers. The list is read once, but
  -- see S.keep.
  local function kept(name)
    if not S.back then
      S.back = {}
      for other in string.gmatch(call('HGET', META, 'kept') or '', '[^\31]+') do S.back[other] = true end
    end
    return S.back[name]
  end

  -- obey puts a wait of the space into its queues if its class may get offers, else takes it out.
  local function obey(id, wait)
    local names, items = bundle(wait, W_ITEMS)
    local state = kept(wait[6]) and 'k' or 'w'
    if state == 'w' and wait[4] == 'k' and S.unfit(items) then -- the limit was lowered meanwhile
      S.dismiss(wait)
    elseif wait[4] ~= state and (wait[4] == 'w' or wait[4] == 'k') then
      wait[4] = state
      store(id, wait)
      if state == 'k' then
        call('ZREM', Q, unpack(queued(wait, id)))
      else
        enter(wait, id)
        S.reach(wait)
      end
      unbar(names, wait)
    end
  end

  -- align brings the waits of a class into line with it: out of all queues, so that they block no
  -- request and cost nothing, or back to their old places. It handles at most `left` of them, and
  -- returns how many it handled.
  local function align(name, ticket, left)
    local members = {}
    if left > 0 then
      members = call('ZRANGEBYLEX', IDX, '[~k' .. name .. '\0' .. ticket, '(~k' .. name .. '\1', 'LIMIT', '0', left)
    end
    for i = 1, #members do
      local at, id = string.match(members[i], '^[^%z]*%z([^%z]*)%z(.*)$')
      if #freed >= NAMES then -- the rest begins with this one
        left = i - 1
        ticket = at
        break
      end
      obey(id, S.wait(id))
      ticket = at .. '\1'
    end
    if left <= #members then
      call('ZADD', EXP, ms, 'k' .. name .. '\0' .. ticket)
      S.more = true
    end
    return math.min(left, #members)
  end

  -- move gives a wait of the space another class. The wait keeps its ticket, and steps back if the
  -- new class gets no offers.
  function S.move(id, name)
    local wait = S.wait(id)
    if not wait or wait[1] ~= '@' or wait[6] == name then return end
    if class(id, wait) then call('ZREM', IDX, class(id, wait)) end
    wait[6] = name
    if class(id, wait) then call('ZADD', IDX, '0', class(id, wait)) end
    store(id, wait)
    obey(id, wait)
  end

  -- among returns waits of a class in the order of their tickets, `most` of them, and the place
  -- from which to continue: '' to begin, and after the last one.
  function S.among(name, from, most)
    from = from == '' and '[~k' .. name .. '\0' or '(' .. from
    local members, ids = call('ZRANGEBYLEX', IDX, from, '(~k' .. name .. '\1', 'LIMIT', '0', most), {}
    for i = 1, #members do ids[i] = string.match(members[i], '^[^%z]*%z[^%z]*%z(.*)$') end
    return ids, #members == tonumber(most) and members[#members] or ''
  end

  -- keep sets which classes of the space's waits get no offers. Their waits step back, and others
  -- may pass them. When their class is let go, they return to their old places. It returns whether
  -- anything changed.
  function S.keep(names)
    local before, text = call('HGET', META, 'kept') or '', concat(names, US)
    if text == before then return false end
    -- The first write is a removal, so that a full Redis does not refuse the next one.
    call('HDEL', META, 'kept')
    if text ~= '' then call('HSET', META, 'kept', text) end
    S.back = nil
    local changed, left = {}, HOLDS
    for name in string.gmatch(before, '[^\31]+') do changed[name] = true end
    for i = 1, #names do changed[names[i]] = not changed[names[i]] or nil end
    for name in pairs(changed) do left = left - align(name, '', left) end
    return true
  end

  -- visit makes settle() walk the queues of resources that were not freed: a request was queued for
  -- something free.
  function S.visit(names) free(names) end

  -- park queues a request. If the request already has a wait (its offer lapsed, or ends here), that
  -- returns to its place: ticket, age and reserve time stay. patience: how long later requests may
  -- pass, ms. deadline: server ms, or nil. limits and under are as in the record, nil for none. A
  -- wait of a class that is kept back steps back at once.
  function S.park(id, session, info, items, patience, deadline, limits, under)
    S.lapse(id)
    local wait = S.wait(id)
    if wait and wait[4] == 'w' then return end -- it is in the queue
    local new = not wait
    if new then
      under = under or ''
      local n = call('HINCRBY', META, 'ticket', 1)
      local ticket = format('%016.0f', under == '' and 1000000000000000 + n or n)
      wait = fields(concat({session, ticket, ms, 'w', format('%.0f', now + patience), limits or '', under, info,
        concat(items, US)}, US))
      wait.id = id
      call('ZADD', IDX, '0', session .. '\0w\0' .. id)
      if class(id, wait) then call('ZADD', IDX, '0', class(id, wait)) end
      for hold in string.gmatch(under, '[^ ]+') do
        call('ZADD', IDX, '0', '~u' .. hold .. '\0' .. id)
        web, S.nests = nil, true
      end
      if deadline then call('ZADD', EXP, deadline, 'w' .. id) end
    end
    wait[4] = wait[1] == '@' and kept(wait[6]) and 'k' or 'w'
    store(id, wait)
    if wait[4] == 'w' then
      enter(wait, id)
      if not new or wait[7] ~= '' then S.reach(wait) end
    end
  end

  -- sharers returns the sharers of a resource: kind x for holds, o for offers.
  local function sharers(name, kind, limit)
    local from = '~r' .. name .. '\0' .. kind
    local members = call('ZRANGEBYLEX', IDX, '[' .. from, '(' .. from .. '\255', 'LIMIT', '0', limit)
    for i = 1, #members do members[i] = sub(members[i], #from + 1) end
    return members
  end
  S.sharers = sharers

  -- inside returns the waiting requests that are nested in a hold, or nil if there are none. While
  -- the whole space has few of them, one command reads them all.
  local function inside(hold)
    if not web then
      web, spent = {}, spent + 1
      local n = call('ZLEXCOUNT', IDX, '[~u', '(~v')
      if n <= SEARCH / 4 then
        web.all = {}
        local members = call('ZRANGEBYLEX', IDX, '[~u', '(~v')
        spent = spent + n / 8
        for i = 1, n do
          local outer, id = string.match(members[i], '^~u([^%z]*)%z(.*)$')
          web.all[outer] = web.all[outer] or {}
          table.insert(web.all[outer], id)
        end
      end
    end
    if web.all then return web.all[hold] end
    if web[hold] == nil then
      spent = spent + 1
      local from, found = '~u' .. hold .. '\0', nil
      local members = call('ZRANGEBYLEX', IDX, '[' .. from, '(~u' .. hold .. '\1', 'LIMIT', '0', SEARCH)
      for i = 1, #members do
        found = found or {}
        found[i] = sub(members[i], #from + 1)
      end
      web[hold] = found or false
    end
    return web[hold] or nil
  end

  -- sharing returns those of the holds sharing a resource that are in a set or have nested waits.
  -- It also returns the number of the others, which end by themselves. A search that runs out of
  -- time sets S.cut.
  local function sharing(name, set)
    local from = '~r' .. name .. '\0x'
    local n, found = call('ZLEXCOUNT', IDX, '[' .. from, '(' .. from .. '\255'), {}
    inside('')
    spent = spent + 1
    if web.all and n > PAGE then -- otherwise it is cheaper to read them
      local function look(id)
        spent = spent + 0.5
        if call('ZSCORE', IDX, from .. id) then found[#found + 1] = id end
      end
      for id in pairs(web.all) do look(id) end
      for id in pairs(set) do
        if not web.all[id] then look(id) end
      end
      table.sort(found)
    else
      local most = math.max(PAGE, math.floor(SEARCH - spent))
      local members = sharers(name, 'x', most)
      if #members == most and n > most then S.cut = true end
      for i = 1, #members do
        if set[members[i]] or inside(members[i]) then found[#found + 1] = members[i] end
      end
    end
    return found, n - #found
  end

  -- leads follows a wait to everything that it waits for, or may have to wait for: holds, the waits
  -- nested in these, and the waits that come before one of those. With a set of holds, or a request
  -- of its own, it returns whether it reaches one of them; otherwise the nested waits that it
  -- meets. It ignores amounts. If it runs out of time, it sets S.cut and returns true.
  local function leads(start, set, own)
    local seen, stack, met = {}, {start}, {}
    local function push(wait)
      if wait[2] < NESTED and not seen[wait.id] then met[#met + 1] = wait end
      if wait.id ~= start.id and not seen[wait.id] then stack[#stack + 1] = wait end
      seen[wait.id] = true
    end
    local function pass(id) -- returns whether a hold is in the set
      if seen['x' .. id] then return false end
      seen['x' .. id] = true
      if set and set[id] then return true end
      local waits = inside(id)
      for i = 1, waits and #waits or 0 do
        if not seen[waits[i]] then
          spent = spent + 1
          local wait = S.wait(waits[i])
          if wait then push(wait) end
        end
      end
      return false
    end
    while #stack > 0 do
      local wait = table.remove(stack)
      if wait.id == own then return true end
      local nested = within(wait[7])
      for i = W_ITEMS, #wait do
        if spent > SEARCH then
          S.cut = true
          return true, met
        end
        local name, mode = named(wait[i]), sub(wait[i], 1, 1)
        local owner = call('HGET', OWN, name)
        local kind = owner and sub(owner, 1, 1)
        spent = spent + 2
        if mode ~= 'p' and (kind == 'x' or kind == 'u') and pass(sub(owner, 2)) then return true end
        if kind == 'p' and mode == 'p' or (kind == 's' or kind == 'u') and (mode == 'x' or mode == 'c') then
          local holds = sharing(name, set or {})
          for j = 1, #holds do
            if not (mode == 'x' and nested and nested[holds[j]]) and pass(holds[j]) then return true end
          end
        end
        local from, upto = '[' .. name .. '\0', '(' .. name .. '\0' .. wait[2]
        if nested then upto = '(' .. name .. '\1' end
        local members = call('ZRANGEBYLEX', Q, from, upto, 'LIMIT', '0', SEARCH)
        spent = spent + #members / 4
        if #members == SEARCH then S.cut = true end
        for j = 1, #members do
          local turn, other, reserve, id = string.match(members[j], '^[^%z]*%z([^%z]*)%z(.)%d*%z([^%z]*)%z(.*)$')
          if (mode == 'p') == (other == 'p') and (mode ~= 's' or other == 'x') and
              (not nested or tonumber(reserve) < tonumber(wait[3])) and (not seen[id] or id == start.id) then
            spent = spent + 1
            if spent > SEARCH then break end
            local before = S.wait(id)
            if turn >= NESTED or tonumber(before[3]) <= tonumber(wait[5]) then push(before) end
          end
        end
      end
    end
    return S.cut, met
  end

  -- reach makes settle() examine the nested waits that a wait leads to. Because of it, one that
  -- bars them may now wait for them, and then it no longer bars them.
  function S.reach(wait)
    if S.nests == nil then S.nests = call('ZRANGEBYLEX', IDX, '[~u', '(~v', 'LIMIT', '0', '1')[1] ~= nil end
    if not S.nests then return end
    S.cut = false
    local _, met = leads(wait)
    for i = 1, #met do free(bundle(met[i], W_ITEMS), met[i][2]) end
    if S.cut then later({'G'}) end -- then examine all queues
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
          counts = reserve < (self and tonumber(self[3]) or now) and not (spent > SEARCH or leads(S.wait(id), nested, self and self.id))
        elseif self and turn < NESTED then
          counts = tonumber(S.wait(id)[3]) <= tonumber(self[5])
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

  -- unfit returns why an item can never be granted as it is, and its name; otherwise nil. mode: a
  -- declared permit is requested in another way, or one that is not declared. limit: more permits
  -- than declared.
  function S.unfit(items)
    local names, modes, numbers = parted(items)
    local owners = call('HMGET', OWN, unpack(names))
    for i = 1, #items do
      local declared = owners[i] and sub(owners[i], 1, 1) == 'p' or false
      if declared ~= (modes[i] == 'p') then return 'mode', names[i], declared and 1 or 0 end
      if declared then
        local _, most = permits(owners[i])
        if numbers[i] > most then return 'limit', names[i], most end
      end
    end
    return nil
  end

  -- blocked returns what keeps a request from its bundle: the resource, and x<hold>, o<request>,
  -- w<request>, or l for a limit below the request. Without an obstacle it returns nil, nil and the
  -- younger waits with offers that the request would beat.
  --
  -- self: the ID of the request's own wait, whose offer may reserve the bundle; or its record,
  -- where that cannot be. ticket nil: the youngest. nested: the holds that the request is nested
  -- in, as a set; their shares do not block it. first: the names in whose queues it is the first.
  function S.blocked(items, ticket, self, nested, first)
    local beaten, beats = {}, {}
    local mine = type(self) == 'table' and self or self and S.wait(self)
    if mine and mine[4] == 'o' then return nil, nil, beaten end
    local names, modes, wants = parted(items)
    local owners = call('HMGET', OWN, unpack(names))

    local function beat(id) -- returns the wait that loses its offer to an older ticket
      local wait = ticket and S.wait(id)
      if not wait or ticket >= wait[2] then return nil end
      if not beats[id] then
        beats[id] = true
        beaten[#beaten + 1] = id
      end
      return wait
    end

    -- need returns what must end before n more of a shared resource are free; nil if beaten offers
    -- suffice.
    local function need(name, n, mode)
      local offers = sharers(name, 'o', LOOK)
      local waits = {}
      for i = 1, #offers do
        local wait = S.wait(offers[i])
        waits[i] = {wait[2], offers[i], wait}
      end
      table.sort(waits, function(a, b) return a[1] > b[1] end)
      for i = 1, #waits do
        if n <= 0 then return nil end
        local ours = 1
        for j = W_ITEMS, mode == 'p' and #waits[i][3] or 0 do
          local item, m = named(waits[i][3][j])
          if item == name then ours = m end
        end
        if beats[waits[i][2]] or beat(waits[i][2]) then n = n - ours end
      end
      if n <= 0 then return nil end
      local holds = sharers(name, 'x', 1)
      if holds[1] then return 'x' .. holds[1] end
      return waits[1] and 'o' .. waits[1][2] or 'l'
    end

    for i = 1, #items do
      local owner, mode = owners[i], modes[i]
      local kind, by = owner and sub(owner, 1, 1), nil
      if kind == 'x' or kind == 'u' then
        by = 'x' .. sub(owner, 2)
      elseif kind == 'o' then
        if not beat(sub(owner, 2)) then by = owner end
      elseif kind == 's' and mode == 'x' then
        local offers = sharers(names[i], 'o', LOOK)
        for j = 1, #offers do
          if not by and not beat(offers[j]) then by = 'o' .. offers[j] end
        end
        if #offers == LOOK then by = by or 'o' .. offers[1] end
        if not by then
          local size = 1
          for _ in pairs(nested or {}) do size = size + 1 end
          local holds = sharers(names[i], 'x', size)
          for j = 1, #holds do
            if not (nested and nested[holds[j]]) then by = by or 'x' .. holds[j] end
          end
        end
      elseif kind == 's' and mode == 'c' and sub(owner, 2) - wants[i] >= 0 then
        by = need(names[i], sub(owner, 2) - wants[i] + 1, mode)
      elseif kind == 'p' and mode == 'p' then
        local used, most = permits(owner)
        if used + wants[i] > most then by = need(names[i], used + wants[i] - most, mode) end
      elseif kind == 'p' or mode == 'p' then
        by = 'l' -- declared or undeclared since the request was checked
      end
      if by then return names[i], by end
    end
    if call('ZCARD', Q) > 0 then
      S.cut = false
      local some, whole = queues(names)
      local many = some and #names > WIDE
      if whole then many = false end
      for i = 1, #items do
        local queue, alone = true, false
        if some then queue = some[names[i]] end
        if queue and not nested then
          alone = first and first[names[i]]
          if whole and ticket then alone = alone or string.find(queue[1], names[i] .. '\0' .. ticket .. '\0', 1, true) == 1 end
        end
        local id
        if queue and not alone then
          id = older(modes[i], names[i], wants[i], owners[i], ticket, nested, mine, many and queue or nil)
        end
        if id then return names[i], 'w' .. id end
      end
    end
    return nil, nil, beaten
  end

  -- seize takes a free bundle for a request that may be nested in others: their shares stay below
  -- it.
  function S.seize(id, session, info, items, limits, under)
    local nested, over = within(under), {}
    for i = 1, nested and #items or 0 do
      local name = named(items[i])
      if sub(items[i], 1, 1) == 'x' and call('HEXISTS', OWN, name) == 1 then over[#over + 1] = name end
    end
    local token = take(id, session, info, items, limits)
    for i = 1, #over do call('HSET', OWN, over[i], 'u' .. id) end
    return token
  end

  -- inform publishes a message to a session, under its next revision.
  function S.inform(session, kind, ...)
    local rev = call('HINCRBY', META, 'rev:' .. session, 1)
    call('PUBLISH', sub(META, 1, -5) .. 'to:' .. session, concat({kind, rev, ...}, US))
  end

  -- give passes a free bundle to a wait: a session's wait gets its hold and a message, the space's
  -- wait gets an offer.
  local function give(id, wait)
    local _, items = bundle(wait, W_ITEMS)
    call('ZREM', Q, unpack(queued(wait, id)))
    if wait[1] ~= '@' then
      forget(id, wait)
      local token = S.seize(id, wait[1], wait[8], items, wait[6], wait[7])
      S.inform(wait[1], 'g', id, token, ms)
      return
    end
    wait[4] = 'o'
    store(id, wait)
    occupy(items, 'o' .. id)
    call('ZADD', EXP, now + OFFER, 'o' .. id)
    call('ZADD', IDX, '0', '@\0o\0' .. id)
    S.offers[#S.offers + 1] = id
  end

  -- grace returns for how many more ms nothing is granted, or nil.
  function S.grace()
    if S.resumes == nil then
      local upto = call('HGET', META, 'grace')
      S.resumes = upto and tonumber(upto) or 0
    end
    return S.resumes > now and S.resumes - now or nil
  end

  -- settle grants what was freed to the waits for it: to each grantable wait, the oldest first,
  -- whichever of the freed resources it waits for. It walks all their queues at once, by ticket.
  -- During a grace period it does nothing; reap ends that and then has all waits examined. On a
  -- server that the space does not know it grants nothing and begins a grace period, which the next
  -- greeting there extends as needed.
  function S.settle()
    if #freed == 0 then return end
    local names, owners = {}, {}
    if call('ZCARD', Q) > 0 and not S.grace() and S.resumes == 0 then names = freed end
    local from, nested = since, front
    freed, since, front = {}, {}, {}
    if #names == 0 then return end

    -- open returns whether a request in a head's queue may still be granted, given the occupation
    -- of the resource.
    local function open(head, owner)
      local kind = owner and sub(owner, 1, 1)
      head.shared, head.permits = kind == 's', kind == 'p'
      if kind == 'p' then
        local used, most = permits(owner)
        return used < most
      end
      return not kind or kind == 's'
    end

    -- advance moves a head to the next wait in its queue that is worth examining, and returns
    -- whether there is one.
    local function advance(head)
      while true do
        head.at = head.at + 1
        if head.at > #head.members and not head.whole and (head.at == 1 or head.at > head.page) then
          head.members = call('ZRANGEBYLEX', Q, head.from, '(' .. head.name .. '\1', 'LIMIT', '0', PAGE_TEXT)
          head.from, head.at, head.page = '(' .. (head.members[PAGE] or ''), 1, PAGE
        end
        local member = head.members[head.at]
        if not member then return false end
        head.ticket, head.mode, head.reserve, head.id = string.match(member, '^[^%z]*%z([^%z]*)%z(.)%d*%z([^%z]*)%z(.*)$')
        if head.skip and head.ticket >= NESTED then -- that was the last nested one
          local jumps = head.ticket < head.skip
          if jumps and head.whole then return advance(head) end
          if jumps then head.from, head.at, head.members = '[' .. head.name .. '\0' .. head.skip, 0, {} end
          head.skip = nil
          if jumps then return advance(head) end
        end
        -- An exclusive request waits for all sharers to end, unless it is nested in one of them.
        if not head.shared or head.mode ~= 'x' or head.ticket < NESTED then return true end
        if tonumber(head.reserve) <= now then return false end
        looked = looked + 1 / 8
        if looked >= LOOK then return true end
      end
    end

    -- The heads by ticket, and the tickets as a heap: the oldest first.
    local heap, heads = {}, {}
    local function push(head)
      local ticket = head.ticket
      if heads[ticket] then
        table.insert(heads[ticket], head)
        return
      end
      heads[ticket] = {head}
      local at = #heap + 1
      while at > 1 and heap[math.floor(at / 2)] > ticket do
        heap[at] = heap[math.floor(at / 2)]
        at = math.floor(at / 2)
      end
      heap[at] = ticket
    end
    local function pop()
      local size, last, at = #heap - 1, table.remove(heap), 1
      while size > 0 do
        local below = 2 * at
        if below < size and heap[below + 1] < heap[below] then below = below + 1 end
        if below > size or heap[below] >= last then break end
        heap[at] = heap[below]
        at = below
      end
      if size > 0 then heap[at] = last end
    end

    local left, some, all = {}, queues(names) -- left: for the next script
    if some then
      local queued = {}
      for i = 1, #names do
        if some[names[i]] then queued[#queued + 1] = names[i] end
      end
      names = queued
    end
    for i = 1, #names do
      local name, owner = names[i], nil
      if looked >= LOOK then
        left[#left + 1] = 'g' .. name .. '\0' .. (nested[name] and '' or from[name])
      else
        if (i - 1) % 500 == 0 then owners = call('HMGET', OWN, unpack(names, i, math.min(i + 499, #names))) end
        owner = owners[(i - 1) % 500 + 1]
        looked = looked + (all and 1 / 8 or 1 / 16)
        local head = {name = name, from = '[' .. name .. '\0' .. from[name], members = {}, at = 0}
        if nested[name] then head.from, head.skip = '[' .. name .. '\0', from[name] end
        if some and not all and from[name] == '' then -- the beginning of the queue is known already
          head.members, head.page, head.from = {some[name]}, 1, '(' .. some[name]
        elseif all then
          head.members, head.whole = some[name], true
          if not nested[name] and from[name] ~= '' then -- from there on
            while head.members[head.at + 1] and head.members[head.at + 1] < name .. '\0' .. from[name] do head.at = head.at + 1 end
          end
        end
        head.first = from[name] == ''
        if open(head, owner) and advance(head) then
          head.first = head.first and head.at == 1
          push(head)
        end
      end
    end

    local unknown -- whether the space does not know this server; read before the first grant
    while heap[1] and looked < LOOK do
      local ticket = heap[1]
      local same = heads[ticket]
      local wait = S.wait(same[1].id)
      local weight = 1 + math.floor((#wait - W_ITEMS) / 16)
      -- a very large request gets its own script
      if looked + weight > LOOK and looked > LOOK / 4 then break end
      looked = looked + weight
      -- back: kept back, but it has not stepped back yet.
      local back, given = wait[1] == '@' and kept(wait[6]), false
      -- no request passes it
      local barred = not back and ticket >= NESTED and tonumber(wait[5]) <= now
      if not back and (wait[1] == '@' or ends(wait[1])) then
        local _, items = bundle(wait, W_ITEMS)
        local first = {}
        for i = 1, #same do first[same[i].name] = same[i].first end
        local resource, _, beaten = S.blocked(items, ticket, wait, within(wait[7]), first)
        given = not resource and #beaten == 0
        if given then
          if unknown == nil then unknown = strange() end
          if unknown then
            S.resumes = tonumber(pause(0, 0))
            return
          end
          give(wait.id, wait)
        end
      end
      pop()
      heads[ticket] = nil
      for i = 1, #same do
        local head, stay = same[i], nil
        if given then
          stay = head.mode ~= 'x' and open(head, call('HGET', OWN, head.name))
        else
          stay = not (barred and head.mode == 'x' and not head.permits)
        end
        head.first = false
        if stay and advance(head) then push(head) end
      end
    end
    for i = 1, #heap do
      local same = heads[heap[i]]
      for j = 1, #same do left[#left + 1] = 'g' .. same[j].name .. '\0' .. heap[i] end
    end
    later(left)
  end

  -- reap handles what is due: it ends sessions with everything they have, waits, offers and limits
  -- of holds, and continues with the work list.
  function S.reap()
    local due = call('ZRANGEBYSCORE', EXP, '-inf', ms, 'WITHSCORES', 'LIMIT', '0', DUE)
    S.more = S.more or #due == 2 * DUE
    local left = HOLDS
    for i = 1, #due, 2 do
      if #freed >= NAMES then -- what is left stays due
        S.more = true
        break
      end
      local kind, id = sub(due[i], 1, 1), sub(due[i], 2)
      if kind == 's' then
        -- A session that was closed in order ends at 0, see close.
        local crashed = tonumber(due[i + 1]) > 0
        local holds, waits, ended = {}, {}, 0
        if left > 0 then holds = call('ZRANGEBYLEX', HOLD, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', '0', left) end
        if #holds < left then
          waits = call('ZRANGEBYLEX', IDX, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', '0', left - #holds)
        end
        for j = 1, #holds + #waits do
          if #freed >= NAMES then break end
          ended = j
          if j <= #holds then
            S.free(string.match(holds[j], '^[^%z]*%z([^\31]*)'), crashed)
          else
            S.drop(string.match(waits[j - #holds], '^[^%z]*%z.%z(.*)$'))
          end
        end
        if ended < #holds + #waits or #holds + #waits == left then
          S.more = true -- there may be more of them: the entry stays due
        else
          local lease = string.match(call('HGET', META, 'at:' .. id) or '', ' (%d+)$')
          call('ZREM', EXP, due[i])
          if lease then call('ZREM', IDX, format('~l%09d', tonumber(lease)) .. '\0' .. id) end
          call('HDEL', META, 'card:' .. id, 'rev:' .. id, 'at:' .. id)
        end
        left, looked = left - ended, looked + ended / 4
      elseif kind ~= 'e' or not S.grace() then
        call('ZREM', EXP, due[i])
        if kind == 'w' then
          S.drop(id)
        elseif kind == 'o' then
          S.lapse(id)
        elseif kind == 'm' then
          S.free(id)
        elseif kind == 'd' then
          local hold, member = held(id)
          if hold and hold[1] == '@' then wake(id, hold, member) end
        elseif kind == 'g' then
          local name, ticket = string.match(id, '^([^%z]*)%z(.*)$')
          free({name}, ticket)
        elseif kind == 'k' then
          left = left - align(string.match(id, '^([^%z]*)%z'), string.match(id, '%z(.*)$'), left)
        elseif kind == 'c' then
          S.untie(string.match(id, '^([^%z]*)%z'), string.match(id, '%z(.*)$'))
        elseif kind == 'e' or kind == 'G' then
          if kind == 'e' then -- the grace period is over: examine all waits
            call('HDEL', META, 'grace')
            S.resumes = 0
          end
          local name = id
          for _ = 1, PAGE do
            local member = call('ZRANGEBYLEX', Q, '(' .. name .. '\1', '+', 'LIMIT', '0', '1')[1]
            name = member and string.match(member, '^[^%z]*')
            if not name then break end
            free({name})
          end
          if name then
            call('ZADD', EXP, ms, 'G' .. name)
            S.more = true
          end
        end
      end
    end
    S.settle()
  end

  -- tell notifies the desk of offers. A script that makes the offered runs due itself does not call
  -- it.
  function S.tell()
    if #S.offers == 0 then return end
    local desk = call('HGET', META, 'desk')
    if desk then call('PUBLISH', sub(META, 1, -5) .. 'to:' .. desk, 'o') end
  end

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
    local nested, pools, stuck, asks, ended, stack = within(under), {}, {}, {}, {}, {}
    S.cut = false

    -- pool records what some holds have of a resource: the amount of each, the sum, and the holds
    -- whose nested waits want it.
    local function pool(key, name, ids, amounts)
      local new = {name = name, ids = ids, has = {}, left = 0, wanted = {}, needs = {}}
      for i = 1, #ids do
        new.has[ids[i]] = amounts and amounts[i] or 1
        new.left = new.left + new.has[ids[i]]
        stuck[ids[i]] = stuck[ids[i]] or {}
        if ended[ids[i]] then
          new.left = new.left - new.has[ids[i]]
        else
          table.insert(stuck[ids[i]], new)
        end
      end
      pools[key] = new
      return new
    end

    -- needs returns what a bundle waits for: pools, how much of each may stay taken, and the holds
    -- whose share does not block it.
    local function needs(bundled, own)
      local list = {}
      for i = 1, #bundled do
        local name, n = named(bundled[i])
        local mode = sub(bundled[i], 1, 1)
        if pools['=' .. name] == nil then
          spent = spent + 1
          pools['=' .. name] = call('HGET', OWN, name) or ''
        end
        local owner = pools['=' .. name]
        local kind = sub(owner, 1, 1)
        if mode ~= 'p' and (kind == 'x' or kind == 'u') then
          list[#list + 1] = {pools['x' .. name] or pool('x' .. name, name, {sub(owner, 2)}), 0}
        end
        if mode == 'p' and kind == 'p' then
          local used, most = permits(owner)
          local shared = pools['s' .. name]
          if not shared and used + n > most then
            local ids, others = sharing(name, nested)
            if used + n - most > others then -- otherwise the others return enough
              local amounts = {}
              for j = 1, used > #ids + others and #ids or 0 do -- otherwise each has one
                spent = spent + 1
                local hold = held(ids[j])
                for k = H_ITEMS, #hold do
                  local other, m = named(hold[k])
                  if other == name then amounts[j] = m end
                end
              end
              shared = pool('s' .. name, name, ids, amounts)
            end
          end
          if shared then list[#list + 1] = {shared, most - n} end
        elseif (kind == 's' or kind == 'u') and (mode == 'x' or mode == 'c') then
          local shared = pools['s' .. name] or pool('s' .. name, name, (sharing(name, nested)))
          list[#list + 1] = {shared, mode == 'c' and n - 1 or 0, mode == 'x' and own or nil}
        end
      end
      return list
    end

    local function blocks(need)
      local left = need[1].left
      if left <= need[2] then return false end
      for id in pairs(need[3] or {}) do
        if need[1].has[id] and not ended[id] then left = left - 1 end
      end
      return left > need[2]
    end

    local function waits(list)
      for i = 1, #list do
        if blocks(list[i]) then return true end
      end
      return false
    end

    local function rests(id) -- then it ends by itself
      spent = spent + 0.5
      return call('ZSCORE', EXP, 'd' .. id)
    end

    -- strike ends a hold, and those that waited only for it.
    local function strike(first)
      local list = {first}
      while #list > 0 do
        local id = table.remove(list)
        local of = stuck[id] or {}
        if not ended[id] then
          ended[id] = true
          for i = 1, #of do
            of[i].left = of[i].left - of[i].has[id]
            for other in pairs(of[i].wanted) do
              spent = spent + 1 / 16
              if not ended[other] and not nested[other] and not waits(asks[other]) then list[#list + 1] = other end
            end
          end
        end
      end
    end

    local function add(list) -- pushes what must be examined for these needs
      for i = 1, #list do
        local of = list[i][1]
        if blocks(list[i]) then
          if #of.needs == 0 then
            for j = 1, #of.ids do stack[#stack + 1] = {of.ids[j], of} end
          end
          table.insert(of.needs, list[i])
        end
      end
    end

    for id in pairs(nested) do
      if rests(id) then nested[id] = nil end
    end
    local first = needs(items, within(under))
    add(first)
    while #stack > 0 and waits(first) do
      local id, of = unpack(table.remove(stack))
      local needed = waits(of.needs)
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
          if wait and ends(wait[1]) then
            local _, wanted = bundle(wait, W_ITEMS)
            local list = needs(wanted, within(wait[7]) or {})
            for j = 1, #list do
              list[j][4] = ids[i]
              list[j][1].wanted[id] = true
              table.insert(asks[id], list[j])
            end
          end
        end
        if waits(asks[id]) and not rests(id) then add(asks[id]) else strike(id) end
      end
    end
    if not waits(first) then return nil end

    -- way returns the shortest way back to one of the holds that the request is nested in. If the
    -- search was cut short, it returns the way to a hold that the search did not reach.
    local function way()
      local queue, seen, at, loose = {}, {}, 1, nil
      local function follow(list, from)
        for i = 1, #list do
          local ids = list[i][1].ids
          for j = 1, blocks(list[i]) and #ids or 0 do
            local id = ids[j]
            if not ended[id] and not seen[id] and not (list[i][3] and list[i][3][id]) then
              seen[id] = true
              queue[#queue + 1] = {id, list[i][1].name, from, list[i][4]}
            end
          end
        end
      end
      follow(first, nil)
      while queue[at] do
        local step = queue[at]
        if nested[step[1]] then return step end
        if asks[step[1]] then follow(asks[step[1]], step) else loose = loose or step end
        at = at + 1
      end
      return S.cut and loose
    end

    local step = way()
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
        local path, waiting = S.cycle(items, wait[7])
        if not path then break end
        local youngest = wait
        for j = 1, #waiting do
          local other = S.wait(waiting[j])
          if other[2] > youngest[2] then youngest = other end
        end
        S.drop(youngest.id)
        if ends(youngest[1]) then S.inform(youngest[1], 'a', youngest.id) end
        wait = youngest.id ~= id and S.wait(id)
      end
    end
    if #members == LOOK then later({'c' .. name .. '\0' .. string.match(members[LOOK], '^[^%z]*%z([^%z]*)') .. '\1'}) end
  end

  -- describe reports what is in the way: resource, session ('' without one: a reservation, a
  -- resting hold, a limit), ID, info, token, ms since, ms left (of the lease, or of the rest),
  -- waits for the resource.
  function S.describe(name, owner)
    local id, kind = sub(owner, 2), sub(owner, 1, 1)
    local waits = call('ZLEXCOUNT', Q, '[' .. name .. '\0', '(' .. name .. '\1')
    if kind == 'x' then
      local hold = held(id)
      local session, left = hold[1], nil
      if session == '@' then
        session, left = '', tonumber(call('ZSCORE', EXP, 'd' .. id))
      else
        left = ends(session)
      end
      return name, session, id, hold[6], hold[2], format('%.0f', now - hold[3]), format('%.0f', (left or now) - now), waits
    elseif kind == 'l' then
      return name, '', '', '', '0', '0', '0', waits
    end
    local wait = S.wait(id)
    return name, '', id, wait[8], '0', format('%.0f', now - wait[3]), '0', waits
  end

  return S
end

-- quiet reports whether nothing is due, so that a script may take its fast path.
local function quiet() return call('ZCOUNT', EXP, '-inf', ms) == 0 end

-- soonest returns in how many ms the next entry of the timer wheel is due, or -1.
local function soonest()
  local first = call('ZRANGE', EXP, 0, 1, 'WITHSCORES')
  local at = first[2]
  if first[1] == 'e' then -- it comes first until the grace period ends
    at = call('HGET', META, 'grace') or '0'
    if first[4] and tonumber(first[4]) < tonumber(at) then at = first[4] end
  end
  return at and math.max(0, tonumber(at) - now) or -1
end
