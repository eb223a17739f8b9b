-- The lock space: what every script of it shares. It is put in front of each script, so it is kept short: the fast
-- path runs straight through, and space() makes the functions of the slow path only where they are needed.
--
-- KEYS, the same in every script, all in one slot:
--   1 exp   ZSET  the timer wheel, score = server ms; members by their first byte:
--                   s<session> its end   w<request> a wait's deadline   o<request> an offer's end
--                   g<resource>\0<ticket> a queue that is still to be walked, from that ticket on
--   2 own   HASH  resource -> x<hold> (held) | o<request> (reserved for an offer)
--   3 hold  HASH  hold -> session, token, since (ms), info, items...              joined by \31
--   4 wait  HASH  request -> session, ticket, since, state, reserve, info, items... joined by \31
--                   state: w waiting, in the queues | o offered, bundle reserved | l offer lapsed, keeps its ticket
--                   session: @ for a wait that belongs to the space; it is offered its bundle, not granted it
--   5 q     ZSET  all scores 0: resource \0 ticket \0 mode \0 reserve (ms) \0 request. One FIFO per resource, of the
--                   waits in state w alone
--   6 idx   ZSET  all scores 0: session \0 h|w \0 id; and @ \0 o \0 request: offers nobody has picked up yet
--   7 meta  HASH  card:<session>, rev:<session> (grants it must hear of), ticket (the last one), desk (the session
--                   that picks up offers)
--   8 seq   STRING  the last token
--
-- An item is a mode and a name: x<name> for exclusive. Names hold no control bytes, so \0 and \31 part what they part.
-- Times are server milliseconds, tokens server microseconds at least; both are printed by %.0f, for tostring and ..
-- keep only 14 digits.
local EXP, OWN, HOLD, WAIT = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local Q, IDX, META, SEQ = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local call, sub, format, concat = redis.call, string.sub, string.format, table.concat
local US = '\31'

local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local now = math.floor(us / 1000)
local ms = format('%.0f', now) -- now, to be written

-- ends returns when a session ends, or nil when it has ended, reaped or not.
local function ends(session)
  local at = call('ZSCORE', EXP, 's' .. session)
  at = at and tonumber(at)
  return at and at > now and at or nil
end

-- take grants a bundle: draws the token, writes occupation, hold and index. The caller has checked that all is free.
local function take(id, session, info, items)
  local token = format('%.0f', us)
  local last = call('SET', SEQ, token, 'GET')
  last = last and tonumber(last)
  if last and last >= us then
    token = format('%.0f', last + 1)
    call('SET', SEQ, token)
  end
  local slots, value = {}, 'x' .. id
  for i = 1, #items do
    slots[2 * i - 1] = sub(items[i], 2)
    slots[2 * i] = value
  end
  call('HSET', OWN, unpack(slots))
  call('HSET', HOLD, id, concat({session, token, ms, info, concat(items, US)}, US))
  call('ZADD', IDX, 0, session .. '\0h\0' .. id)
  return token
end

-- fields parts a record.
local function fields(record)
  local out, n = {}, 0
  for field in string.gmatch(record .. US, '([^\31]*)\31') do
    n = n + 1
    out[n] = field
  end
  return out
end

-- bundle returns the names of a record's items, which begin at field `from`; items likewise with their modes.
local function bundle(record, from)
  local names, items = {}, {}
  for i = from, #record do
    items[#items + 1] = record[i]
    names[#names + 1] = sub(record[i], 2)
  end
  return names, items
end

local H_ITEMS, W_ITEMS = 5, 7 -- where the items begin in a hold's and in a wait's record

-- space makes the slow path: what expires, waits and is granted on. Its rule: after settle() no waiter is grantable,
-- save those behind a resource on the work list (S.more), which the next script looks at.
local function space()
  local S = {offers = {}, more = false}
  local OFFER = 2000 -- ms
  -- What one script does at most: waits looked at, due entries, holds and waits of ended sessions, their resources.
  local LOOK, DUE, HOLDS, NAMES, PAGE = 64, 16, 200, 2000, 16
  local freed, since, looked = {}, {}, 0 -- resources to be settled, from which ticket on each

  local function free(names, ticket)
    ticket = ticket or ''
    for i = 1, #names do
      local name = names[i]
      if not since[name] then freed[#freed + 1] = name end
      if not since[name] or ticket < since[name] then since[name] = ticket end
    end
  end

  local function queued(wait, id) -- the queue members of a wait
    local names, items = bundle(wait, W_ITEMS)
    for i = 1, #names do
      names[i] = names[i] .. '\0' .. wait[2] .. '\0' .. sub(items[i], 1, 1) .. '\0' .. wait[5] .. '\0' .. id
    end
    return names
  end

  local function store(id, wait) call('HSET', WAIT, id, concat(wait, US)) end

  function S.wait(id)
    local record = call('HGET', WAIT, id)
    return record and fields(record)
  end

  -- free ends a hold and returns its record, or nil when there is none.
  function S.free(id)
    local record = call('HGET', HOLD, id)
    if not record then return nil end
    local hold = fields(record)
    local names = bundle(hold, H_ITEMS)
    call('ZREM', IDX, hold[1] .. '\0h\0' .. id)
    call('HDEL', HOLD, id)
    call('HDEL', OWN, unpack(names))
    free(names)
    return hold
  end

  -- drop ends a wait in any state, its offer included, and returns its record, or nil when there is none.
  function S.drop(id)
    local wait = S.wait(id)
    if not wait then return nil end
    local names = bundle(wait, W_ITEMS)
    call('ZREM', IDX, wait[1] .. '\0w\0' .. id, '@\0o\0' .. id)
    call('ZREM', EXP, 'w' .. id, 'o' .. id)
    call('HDEL', WAIT, id)
    if wait[4] == 'w' then
      call('ZREM', Q, unpack(queued(wait, id)))
    elseif wait[4] == 'o' then
      call('HDEL', OWN, unpack(names))
    end
    free(names) -- also when it only stood in the queues: it may have kept others from passing
    return wait
  end

  -- lapse ends an offer that was not taken: others may use the bundle, the wait keeps its ticket.
  function S.lapse(id)
    local wait = S.wait(id)
    if not wait or wait[4] ~= 'o' then return end
    local names = bundle(wait, W_ITEMS)
    call('ZREM', EXP, 'o' .. id)
    call('HDEL', OWN, unpack(names))
    wait[4] = 'l'
    store(id, wait)
    free(names)
  end

  -- visit has settle() look along the queues of resources that were not freed: somebody was parked for what is free.
  function S.visit(names) free(names) end

  -- park queues a request; one that already has a wait (its offer lapsed, or is given up here) goes back to its place:
  -- ticket, age and reserve time stay. patience, ms: so long later requests may pass. deadline: server ms, or nil.
  function S.park(id, session, info, items, patience, deadline)
    S.lapse(id)
    local wait = S.wait(id)
    if wait then
      wait[4] = 'w'
    else
      local ticket = format('%016.0f', call('HINCRBY', META, 'ticket', 1))
      wait = fields(concat({session, ticket, ms, 'w', format('%.0f', now + patience), info, concat(items, US)}, US))
      call('ZADD', IDX, 0, session .. '\0w\0' .. id)
      if deadline then call('ZADD', EXP, deadline, 'w' .. id) end
    end
    store(id, wait)
    local members = queued(wait, id)
    for i = 1, #members do call('ZADD', Q, 0, members[i]) end
  end

  -- older returns the request of a wait that stands before `ticket` (nil: before everybody new) in the queue of a
  -- resource and may no longer be passed, or nil. It looks at the LOOK oldest: younger ones became aged no earlier.
  local function older(name, ticket, self)
    local upto = ticket and '(' .. name .. '\0' .. ticket or '(' .. name .. '\1'
    local members = call('ZRANGEBYLEX', Q, '[' .. name .. '\0', upto, 'LIMIT', 0, LOOK)
    for i = 1, #members do
      local reserve, id = string.match(members[i], '^[^%z]*%z[^%z]*%z.%z([^%z]*)%z(.*)$')
      if tonumber(reserve) <= now and id ~= self then return id end
    end
    return nil
  end

  -- blocked tells what keeps a request from its bundle: the resource, and x<hold>, o<request> or w<request>; or nil,
  -- nil and the younger waits whose offers it would beat. self: the request's own wait. ticket nil: the youngest.
  -- What is reserved for the request by its own offer, no wait that has grown old since then takes away.
  function S.blocked(names, ticket, self)
    local beaten, mine = {}, 'o' .. (self or '')
    local owners = call('HMGET', OWN, unpack(names))
    for i = 1, #names do
      local owner = owners[i]
      if owner and owner ~= mine then
        local offered = sub(owner, 1, 1) == 'o' and ticket and S.wait(sub(owner, 2))
        if not (offered and ticket < offered[2]) then return names[i], owner end
        beaten[#beaten + 1] = sub(owner, 2)
      end
    end
    for i = 1, #names do
      local id = owners[i] ~= mine and older(names[i], ticket, self)
      if id then return names[i], 'w' .. id end
    end
    return nil, nil, beaten
  end

  -- give hands a bundle that is free to a wait: a session's gets its hold and hears of it, the space's an offer.
  local function give(id, wait)
    local names, items = bundle(wait, W_ITEMS)
    call('ZREM', Q, unpack(queued(wait, id)))
    if wait[1] ~= '@' then
      call('HDEL', WAIT, id)
      call('ZREM', IDX, wait[1] .. '\0w\0' .. id)
      call('ZREM', EXP, 'w' .. id)
      local token = take(id, wait[1], wait[6], items)
      local rev = call('HINCRBY', META, 'rev:' .. wait[1], 1)
      call('PUBLISH', sub(META, 1, -5) .. 'to:' .. wait[1], concat({'g', rev, id, token, ms}, US))
      return
    end
    local slots = {}
    for i = 1, #names do
      slots[2 * i - 1] = names[i]
      slots[2 * i] = 'o' .. id
    end
    wait[4] = 'o'
    store(id, wait)
    call('HSET', OWN, unpack(slots))
    call('ZADD', EXP, now + OFFER, 'o' .. id)
    call('ZADD', IDX, 0, '@\0o\0' .. id)
    S.offers[#S.offers + 1] = id
  end

  -- settle grants what was freed to who waits for it: to each wait that can be granted, the oldest first, whichever of
  -- the freed resources it waits for. It looks along all their queues at once, by tickets.
  function S.settle()
    local heads = {}
    if #freed > 0 and call('ZCARD', Q) > 0 then
      for i = 1, #freed do
        local name = freed[i]
        if not call('HGET', OWN, name) then
          heads[#heads + 1] = {name = name, from = '[' .. name .. '\0' .. since[name], members = {}, at = 0}
        end
      end
    end
    freed, since = {}, {}
    local ticket, given, barred -- of the wait looked at last; barred: nobody passes it
    while true do
      local rest, first = {}, nil
      for i = 1, #heads do
        local head = heads[i]
        if head.ticket == ticket and not given and not barred then -- on to the next in its queue
          head.at = head.at + 1
          if head.at > #head.members and (head.at == 1 or head.at > PAGE) then
            head.members = call('ZRANGEBYLEX', Q, head.from, '(' .. head.name .. '\1', 'LIMIT', 0, PAGE)
            head.from, head.at = '(' .. (head.members[PAGE] or ''), 1
          end
          local member = head.members[head.at]
          if member then
            head.ticket, head.reserve, head.id = string.match(member, '^[^%z]*%z([^%z]*)%z.%z([^%z]*)%z(.*)$')
            rest[#rest + 1] = head
          end
        elseif head.ticket ~= ticket then
          rest[#rest + 1] = head
        end
        head = rest[#rest]
        if head and (not first or head.ticket < first.ticket) then first = head end
      end
      heads = rest
      if not first then return end
      if looked >= LOOK then
        for i = 1, #heads do call('ZADD', EXP, ms, 'g' .. heads[i].name .. '\0' .. heads[i].ticket) end
        S.more = true
        return
      end
      local wait = S.wait(first.id)
      local names = bundle(wait, W_ITEMS)
      looked = looked + 1 + math.floor(#names / 16)
      ticket, given, barred = first.ticket, false, tonumber(first.reserve) <= now
      if wait[1] == '@' or ends(wait[1]) then
        local resource, _, beaten = S.blocked(names, ticket, first.id)
        given = not resource and #beaten == 0
        if given then give(first.id, wait) end
      end
    end
  end

  -- reap ends what is due: sessions with all they have, waits, offers; and goes on with the work list.
  function S.reap()
    local due = call('ZRANGEBYSCORE', EXP, '-inf', ms, 'LIMIT', 0, DUE)
    S.more = S.more or #due == DUE
    local left = HOLDS
    for i = 1, #due do
      local kind, id = sub(due[i], 1, 1), sub(due[i], 2)
      if kind == 's' then
        local mine, ended = {}, 0
        if left > 0 then mine = call('ZRANGEBYLEX', IDX, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, left) end
        while ended < #mine and #freed < NAMES do
          ended = ended + 1
          local what, it = string.match(mine[ended], '^[^%z]*%z(.)%z(.*)$')
          if what == 'h' then S.free(it) else S.drop(it) end
        end
        if ended < #mine or #mine == left then
          S.more = true -- there may be more of them: the entry stays due
        else
          call('ZREM', EXP, due[i])
          call('HDEL', META, 'card:' .. id, 'rev:' .. id)
        end
        left = left - ended
      else
        call('ZREM', EXP, due[i])
        if kind == 'w' then
          S.drop(id)
        elseif kind == 'o' then
          S.lapse(id)
        elseif kind == 'g' then
          local name, ticket = string.match(id, '^([^%z]*)%z(.*)$')
          free({name}, ticket)
        end
      end
    end
    S.settle()
  end

  -- tell lets the desk know of offers; a script that makes the offered runs due itself does not call it.
  function S.tell()
    if #S.offers == 0 then return end
    local desk = call('HGET', META, 'desk')
    if desk then call('PUBLISH', sub(META, 1, -5) .. 'to:' .. desk, 'o') end
  end

  -- describe reports who is in the way: resource, session ('' for a reservation), id, info, token, ms since, ms of
  -- lease left, waits for the resource.
  function S.describe(name, owner)
    local id = sub(owner, 2)
    local waits = call('ZLEXCOUNT', Q, '[' .. name .. '\0', '(' .. name .. '\1')
    if sub(owner, 1, 1) == 'x' then
      local hold = fields(call('HGET', HOLD, id))
      local left = (ends(hold[1]) or now) - now
      return name, hold[1], id, hold[4], hold[2], format('%.0f', now - hold[3]), format('%.0f', left), waits
    end
    local wait = S.wait(id)
    return name, '', id, wait[6], '0', format('%.0f', now - wait[3]), '0', waits
  end

  return S
end

-- quiet tells whether nothing is due, so that the fast path may be taken.
local function quiet()
  local first = call('ZRANGE', EXP, 0, 0, 'WITHSCORES')
  return not first[2] or tonumber(first[2]) > now
end

-- soonest returns in how many ms the next entry of the timer wheel is due, or -1.
local function soonest()
  local first = call('ZRANGE', EXP, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, tonumber(first[2]) - now) or -1
end
