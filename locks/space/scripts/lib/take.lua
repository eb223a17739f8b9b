-- Take and give back: how the fast paths find what is free, occupy it, and free it again. They do
-- so for exclusive bundles without limits, while nothing is due and no request waits for any of the
-- names. hold.lua and slow/release.lua do it for all others.
--
-- Lua allocates each outer local that a function uses, whenever it creates the function. So these
-- functions use none, but globals and their arguments: that takes a third of the time.

-- awaited returns the names from list[first] to list[last] that have waits in their queues, as a
-- set that may contain other names, too. It returns nil if the space has no wait in a queue. The
-- second result is the first entry in the queue of the last name, if that has one. The fast paths
-- call it. It reads one queue per name. For many names it first goes from queue to queue, since
-- usually few names have waits. "Many callers" in doc.go explains why no other wait matters.
local function awaited(list, first, last)
  local call, Q = redis.call, KEYS[5]
  if call('ZCARD', Q) == 0 then return nil end
  local found, from, entry = {}, '-', nil
  for _ = 1, last - first > 8 and 8 or 0 do
    local member = call('ZRANGEBYLEX', Q, from, '+', 'LIMIT', '0', '1')[1]
    if not member then return found end
    local name = string.match(member, '^[^%z]*')
    found[name], from = true, '(' .. name .. '\1'
  end
  for i = first, last do
    local name = list[i]
    entry = call('ZRANGEBYLEX', Q, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', '0', '1')[1]
    if entry then found[name] = true end
  end
  return found, entry
end

-- occupied returns the names from list[first] to list[last] that are held, reserved or waited for,
-- as a set that may contain other names, too.
local function occupied(list, first, last)
  local set, owners = awaited(list, first, last) or {}, redis.call('HMGET', KEYS[2], unpack(list, first, last))
  for i = first, last do
    if owners[i - first + 1] then set[list[i]] = true end
  end
  return set
end

-- noneIn reports whether none of the names from list[first] to list[last] is in a set; nil is an
-- empty set.
local function noneIn(set, list, first, last)
  for i = first, set and last or 0 do
    if set[list[i]] then return false end
  end
  return true
end

-- live reports whether a session lives and nothing is due: a session has its card until it is
-- reaped.
local function live(session, ms)
  return redis.call('ZCOUNT', KEYS[1], '-inf', ms) == 0 and redis.call('HEXISTS', KEYS[7], 'card:' .. session) == 1
end

-- draw issues n tokens, each greater by one than that before it, and returns the last one as text
-- and the first one. Tokens only grow: the first is the server's time in microseconds (text), or,
-- if that was issued already, the next one. taken: names that are occupied already, those from
-- taken[from] on, or nil. If Redis refuses the token, they are freed: no hold has them.
local function draw(micros, n, taken, from)
  local token = n == 1 and micros or string.format('%.0f', micros + n - 1)
  local first, last = micros + 0, nil
  if taken then last = redis.pcall('SET', KEYS[8], token, 'GET') else last = redis.call('SET', KEYS[8], token, 'GET') end
  if type(last) == 'table' then
    redis.call('HDEL', KEYS[2], unpack(taken, from))
    redis.call('SET', KEYS[8], token, 'GET') -- ends the script with the same error
  end
  if not last or last + 0 < first then return token, first end
  token = string.format('%.0f', last + n)
  redis.call('SET', KEYS[8], token)
  return token, last + 1
end

-- take writes holds: what their names are occupied by, and their members, each after its score.
local function take(slots, members)
  redis.call('HSET', KEYS[2], unpack(slots))
  redis.call('ZADD', KEYS[3], unpack(members))
end

-- takeFree is take for one hold, if the names from list[first] on are free: value is what they are
-- occupied by. It returns whether they were.
local function takeFree(list, first, value)
  local call, OWN = redis.call, KEYS[2]
  if not list[first + 1] then return call('HSETNX', OWN, list[first], value) == 1 end
  local owners, slots = call('HMGET', OWN, unpack(list, first)), {}
  for i = 1, #owners do
    if owners[i] then return false end
    slots[2 * i - 1], slots[2 * i] = list[first + i - 1], value
  end
  call('HSET', OWN, unpack(slots))
  return true
end

-- asGranted returns a list with a value for each of the members from list[first] to list[last] of
-- which the space has the hold as it was granted, and false for the others.
local function asGranted(list, first, last) return redis.call('ZMSCORE', KEYS[3], unpack(list, first, last)) end

-- giveBack releases holds, by their members, and frees their names, those from list[first] on. It
-- returns false, and changes nothing, if none of the holds exists. The first write is a removal, so
-- that a full Redis does not refuse it. at: the server's ms as text; nil if the script has not read
-- its clock.
local function giveBack(at, list, first, ...)
  if redis.call('ZREM', KEYS[3], ...) == 0 then return false end
  redis.call('HDEL', KEYS[2], unpack(list, first))
  local clock = not at and redis.call('TIME')
  keepEnd(at or clock[1] .. string.sub('00000' .. clock[2], -6, -4), 'hr', ...)
  return true
end
