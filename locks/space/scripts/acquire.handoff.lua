-- The second fast path of acquire: a request for one name begins to wait behind the exclusive hold
-- on it, while nothing is due. It does what the long path would do, and needs none of its
-- functions.
local name, id = ARGV[6], ARGV[2]
local wait, patience = string.match(ARGV[3], '^(%d+)\31(%d+)')
local owner = name and not ARGV[7] and wait and call('HGET', OWN, name)
if owner and sub(owner, 1, 1) == 'x' and owner ~= 'x' .. id and live(ARGV[1], ms) and newestFormat() and
  call('HEXISTS', KEYS[4], id) == 0 then
  local by = sub(owner, 2)
  local session = string.match(by, '^(.*)%.[^.]*$') or ''
  local from, now = session .. '\0' .. by, ms + 0
  local hold = call('ZRANGEBYLEX', HOLD, '[' .. from .. '\31', '(' .. from .. '\32', 'LIMIT', '0', '1')[1]
  local left = hold and call('ZSCORE', KEYS[1], 's' .. session)
  if left then -- else the hold rests
    local token, since, info = string.match(hold, H_MATCH[[SESSION (TOKEN) (SINCE) * * (INFO)]])
    local ticket = format('%.0f', 1000000000000000 + call('HINCRBY', KEYS[7], 'ticket', '1'))
    local reserve = format('%.0f', now + patience)
    call('ZADD', KEYS[6], '0', ARGV[1] .. '\0w\0' .. id)
    if wait ~= '0' then call('ZADD', KEYS[1], format('%.0f', now + wait), 'w' .. id) end
    call('HSET', KEYS[4], id, W_TEXT{SESSION = ARGV[1]; TICKET = ticket; SINCE = ms; STATE = 'w'; RESERVE = reserve; INFO = ARGV[4]; ITEMS = ARGV[5]})
    call('ZADD', KEYS[5], '0', name .. '\0' .. ticket .. '\0x\0' .. reserve .. '\0' .. id)
    local soonest = call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')[2]
    return {'waiting', math.max(0, soonest - now), name, session, by, info, token, format('%.0f', now - since), format('%.0f', left - now),
      call('ZLEXCOUNT', KEYS[5], '[' .. name .. '\0', '(' .. name .. '\1')}
  end
end
