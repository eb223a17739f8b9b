-- The second fast path of acquire: a request for one name begins to wait behind the exclusive hold
-- on it, while nothing is due. It does what the long path would do, and needs none of its
-- functions.
local name, id = ARGV[6], ARGV[2]
local wait, patience = string.match(ARGV[3], '^(%d+)\31(%d+)')
local owner = name and not ARGV[7] and wait and call('HGET', OWN, name)
if owner and sub(owner, 1, 1) == 'x' and owner ~= 'x' .. id then
  local now, soonest = ms + 0, call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')[2]
  local card, written = unpack(call('HMGET', KEYS[7], 'card:' .. ARGV[1], 'format'))
  local by = sub(owner, 2)
  local session = string.match(by, '^(.*)%.[^.]*$') or ''
  local from, hold, left = session .. '\0' .. by, nil, nil
  if soonest and soonest + 0 > now and card and written == format('%d', FORMAT) then
    hold = call('ZRANGEBYLEX', HOLD, '[' .. from .. '\31', '(' .. from .. '\32', 'LIMIT', '0', '1')[1]
    left = hold and call('ZSCORE', KEYS[1], 's' .. session) -- or the hold rests
  end
  -- The first write also finds a request that waits already.
  if left and call('ZADD', KEYS[6], '0', ARGV[1] .. '\0w\0' .. id) == 1 then
    local token, since, info = string.match(hold, H_MATCH[[SESSION (TOKEN) (SINCE) * * (INFO)]])
    local ticket = format('%.0f', 1000000000000000 + call('HINCRBY', KEYS[7], 'ticket', '1'))
    local reserve = format('%.0f', now + patience)
    if wait ~= '0' then
      soonest = math.min(soonest, now + wait)
      call('ZADD', KEYS[1], format('%.0f', now + wait), 'w' .. id)
    end
    call('HSET', KEYS[4], id, W_TEXT{SESSION = ARGV[1]; TICKET = ticket; SINCE = ms; STATE = 'w'; RESERVE = reserve; INFO = ARGV[4]; ITEMS = ARGV[5]})
    call('ZADD', KEYS[5], '0', name .. '\0' .. ticket .. '\0x\0' .. reserve .. '\0' .. id)
    return {'waiting', soonest - now, name, session, by, info, token, format('%.0f', now - since), format('%.0f', left - now),
      call('ZLEXCOUNT', KEYS[5], '[' .. name .. '\0', '(' .. name .. '\1')}
  end
end
