-- The space as a whole, as the key meta describes it, and messages to its sessions.

-- newestFormat reports whether the space is written in the format of this build. A fast path that
-- needs no live session asks for it, since it runs before the guard.
local function newestFormat() return tonumber(redis.call('HGET', KEYS[7], 'format') or '') == FORMAT end

-- everLost reports whether the space has ever lost data.
local function everLost() return call('HEXISTS', META, 'lost') == 1 end

-- reasserting reports whether sessions are re-asserting what Redis has lost.
local function reasserting()
  local lost = call('HMGET', META, 'lost', 'grace')
  return lost[1] and tonumber(lost[2] or 0) > now
end

-- generation returns the ID and the epoch of the space, joined by a blank; nothing before it has
-- them.
local function generation()
  local id, epoch = unpack(call('HMGET', META, 'id', 'epoch'))
  return epoch and (id or '') .. ' ' .. epoch
end

-- keptBack returns the classes of the space's waits that get no offers, joined by \31.
local function keptBack() return call('HGET', META, 'kept') or '' end

-- takeDesk makes a session the one that picks up offers.
local function takeDesk(session) call('HSET', META, 'desk', session) end

-- sessionsByLease returns the sessions with the shortest leases, at most this number of them.
local function sessionsByLease(most)
  local sessions = call('ZRANGEBYLEX', IDX, '[~l', '(~m', 'LIMIT', '0', most)
  for i = 1, #sessions do sessions[i] = string.match(sessions[i], '%z(.*)$') end
  return sessions
end

-- cardOf returns what a session publishes about itself, '' if it has ended.
local function cardOf(session) return call('HGET', META, 'card:' .. session) or '' end

-- notify sends a message to a session.
local function notify(session, message) call('PUBLISH', sub(META, 1, -5) .. 'to:' .. session, message) end

-- notifyAll sends a message to all live sessions among the first entries of the timer wheel, at
-- most this number of entries, and returns how many those are.
local function notifyAll(message, most)
  local alive, n = call('ZRANGEBYSCORE', EXP, '(' .. ms, '+inf', 'LIMIT', '0', most), 0
  for i = 1, #alive do
    if sub(alive[i], 1, 1) == 's' then
      notify(sub(alive[i], 2), message)
      n = n + 1
    end
  end
  return n
end
