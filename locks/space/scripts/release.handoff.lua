-- The second fast path of release: an exclusive hold of one name passes to the first request in its
-- queue, if that asks for this name alone and is not nested, while nothing is due and the space
-- knows this server. It does what the long path would do, and needs none of its functions. The
-- fast path has read the first entry in the queue.
local freed = first and not ARGV[4] and string.match(ARGV[2], H_MATCH[[SESSION TOKEN SINCE (INFO)]])
if freed then -- else it was revoked, or has more names
  local name = ARGV[3]
  local id = string.match(first, '^[^%z]*%z%d*%zx%z[^%z]*%z(.*)$')
  local wait = id and call('HGET', KEYS[4], id)
  local session, since, about, items
  if wait then session, since, about, items = string.match(wait, W_MATCH[[(SESSION) TICKET (SINCE) STATE=w RESERVE (INFO) (ITEMS)]]) end
  if session and session ~= '@' and call('ZCOUNT', KEYS[1], '-inf', ms) == 0 and
    call('ZSCORE', KEYS[1], 's' .. session) then
    local known = call('HMGET', KEYS[7], 'format', 'server')
    local server, info = known[2] or '', known[2] ~= '' and redis.pcall('INFO', 'server')
    local same = server == '' or type(info) == 'string' and string.find(info, 'run_id:' .. server .. '\r', 1, true)
    if same and known[1] == format('%d', FORMAT) and call('ZREM', KEYS[3], ARGV[2]) == 1 then
      call('ZREM', KEYS[5], first)
      call('ZREM', KEYS[6], session .. '\0w\0' .. id)
      call('ZREM', KEYS[1], 'w' .. id)
      call('HDEL', KEYS[4], id)
      local record, by = string.match(ARGV[2], '^[^%z]*(%z([^\31]*).*)$')
      local blocker = name .. '\30' .. by .. '\30' .. (string.match(freed, '"run":"([^"]*)"') or '')
      keepEnd(ms, nil, 'hr' .. record, H_TEXT{SESSION = 'wg\0' .. id; SINCE = since; ASKED = blocker; INFO = about; ITEMS = items})
      local token = draw(micros, 1, ARGV, 3)
      call('HSET', KEYS[2], name, 'x' .. id)
      call('ZADD', KEYS[3], '0', H_TEXT{SESSION = session .. '\0' .. id; TOKEN = token; SINCE = ms; INFO = about; ITEMS = items})
      local revision = call('HINCRBY', KEYS[7], 'rev:' .. session, '1')
      call('PUBLISH', sub(KEYS[7], 1, -5) .. 'to:' .. session, 'g\31' .. format('%d', revision) .. '\31' .. id .. '\31' .. token .. '\31' .. ms)
      return {'released', 0}
    end
  end
end
