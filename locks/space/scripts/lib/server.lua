-- The server: which one it is, and the grace period after another one.

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

-- notice compares the server with the one that the space knows. If it is another one, some of the
-- last writes may be missing: a grace period begins, and a new epoch, in which every session must
-- first assert what it holds. It returns what it found: empty, known, changed, or hidden if this
-- server hides its identity and the one before did not. The second result is the error of INFO.
local function notice(least, margin)
  local id, server, epoch = unpack(call('HMGET', META, 'id', 'server', 'epoch'))
  if not id then return 'empty' end
  local run, _, failed = identity()
  if not run and server and server ~= '' then return 'hidden', failed or '' end
  if not run or server == run then return 'known' end
  -- The first write is a removal, of nothing, so that a full Redis does not refuse the others.
  call('ZREM', EXP, '')
  call('HSET', META, 'server', run)
  if not server or server == '' then return 'known' end -- so far it was hidden
  -- An epoch that is surely new, even after a restored backup.
  call('HSET', META, 'epoch', format('%.0f', math.max(epoch + 1, us)))
  local upto = pause(least, margin)
  -- The last server's clock may have differed, so each lease that it gave ends with the grace
  -- period. The leases of sessions that were closed, or ended after a crash, have ended.
  local members = call('ZRANGEBYLEX', IDX, '[~l', '(~m')
  for i = 1, #members do
    local entry = 's' .. string.match(members[i], '%z(.*)$')
    local at = call('ZSCORE', EXP, entry)
    if at and tonumber(at) > 1 then call('ZADD', EXP, 'XX', upto, entry) end
  end
  return 'changed'
end

-- establish creates the space, in its first epoch, and returns its ID, epoch and format. text: the
-- ID, and after \31 the format of the space; without it, the format of this build.
local function establish(text)
  local id, number = string.match(text, '^([^\31]*)\31?(%d*)$')
  if number == '' then number = format('%d', FORMAT) end
  local epoch = format('%.0f', us)
  call('HSET', META, 'id', id, 'epoch', epoch, 'server', identity() or '', 'format', number, 'least_format', number)
  return id, epoch, number
end

-- attribute records which build began to write the format: the version in the card of its session,
-- if it has one. A build that does not know the format reports that version.
local function attribute(session)
  local version = string.match(call('HGET', META, 'card:' .. session) or '', '"version":"([%w%.%+_-]+)"')
  if version then call('HSET', META, 'format_by', version) else call('HDEL', META, 'format_by') end
end

-- raise returns the format that the space is written in from now on: this build's as soon as every
-- live session can write it, else the one before. It also numbers a space that has no number.
-- session: the one that asks.
-- During a grace period it raises nothing, because a session that has not asserted yet may be of an
-- older build.
local function raise(session)
  local number = WRITTEN or '1'
  if not WRITTEN then call('HSET', META, 'format', number, 'least_format', number) end
  if tonumber(number) >= FORMAT or tonumber(call('HGET', META, 'grace') or 0) > now then return number end
  local from, PAGE = '[~l', 100
  repeat
    local members = call('ZRANGEBYLEX', IDX, from, '(~m', 'LIMIT', '0', PAGE)
    local at, cards = {}, {}
    for i = 1, #members do
      local session = string.match(members[i], '^[^%z]*%z(.*)$')
      at[i], cards[i] = 's' .. session, 'card:' .. session
    end
    if #members > 0 then
      at, cards = call('ZMSCORE', EXP, unpack(at)), call('HMGET', META, unpack(cards))
      for i = 1, #members do
        local knows = tonumber(string.match(cards[i] or '', '^{"format":(%d+)') or 1)
        if tonumber(at[i] or 0) > now and knows < FORMAT then return number end
      end
      from = '(' .. members[#members]
    end
  until #members < PAGE
  number = format('%d', FORMAT)
  call('HSET', META, 'format', number)
  attribute(session)
  return number
end

-- know records a session's lease, and the epoch in which it last asserted everything it holds; ''
-- before that.
local function know(session, lease, epoch)
  call('HSET', META, 'at:' .. session, epoch .. ' ' .. lease)
  call('ZADD', IDX, '0', format('~l%09d', tonumber(lease)) .. '\0' .. session)
end
