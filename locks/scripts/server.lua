-- What follows when the server is another one than the space knows: for the scripts that look first of all.

-- notice compares the server with the one that the space knows. When it is another one, some of the last writes may be
-- missing: a grace time begins, and a new epoch, in which every session has to assert first what it holds. Returns what it
-- found: empty, known, changed, or hidden, when this server does not show its identity and the one before did; behind that
-- the error that INFO gave.
local function notice(least, margin)
  local id, server, epoch = unpack(call('HMGET', META, 'id', 'server', 'epoch'))
  if not id then return 'empty' end
  local run, _, failed = identity()
  if not run and server and server ~= '' then return 'hidden', failed or '' end
  if not run or server == run then return 'known' end
  call('ZREM', EXP, '') -- the first write is a removal, of nothing, so that a full Redis does not refuse the others
  call('HSET', META, 'server', run)
  if not server or server == '' then return 'known' end -- so far, it did not tell
  call('HSET', META, 'epoch', format('%.0f', math.max(epoch + 1, us))) -- one that is surely new, also after a restored backup
  local upto = pause(least, margin)
  -- The last server's clock may have been another one: each lease that it gave ends with the grace time. Those of
  -- sessions that were closed have ended.
  local members = call('ZRANGEBYLEX', IDX, '[~l', '(~m')
  for i = 1, #members do
    local entry = 's' .. string.match(members[i], '%z(.*)$')
    local at = call('ZSCORE', EXP, entry)
    if at and tonumber(at) > 0 then call('ZADD', EXP, 'XX', upto, entry) end
  end
  return 'changed'
end

-- know notes a session's lease, and the epoch in which it has said all that it holds; '' while it has not.
local function know(session, lease, epoch)
  call('HSET', META, 'at:' .. session, epoch .. ' ' .. lease)
  call('ZADD', IDX, 0, format('~l%09d', tonumber(lease)) .. '\0' .. session)
end
