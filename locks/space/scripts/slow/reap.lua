-- Reap: everything that is due.

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
      -- A session that was closed in order ends at 0, one that was ended after a crash at 1, see
      -- close.
      local how = due[i + 1] == '1' and 'c' or due[i + 1] ~= '0' and 'l' or nil
      local holds, waits, ended = {}, {}, 0
      if left > 0 then holds = call('ZRANGEBYLEX', HOLD, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', '0', left) end
      if #holds < left then
        waits = call('ZRANGEBYLEX', IDX, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', '0', left - #holds)
      end
      for j = 1, #holds + #waits do
        if #freed >= NAMES then break end
        ended = j
        if j <= #holds then
          S.free(string.match(holds[j], H_MATCH[[SESSION=[^%z]*%z([^\31]*)]]), how)
        else
          S.drop(string.match(waits[j - #holds], '^[^%z]*%z.%z(.*)$'), how)
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
        S.drop(id, 't')
      elseif kind == 'o' then
        S.lapse(id)
      elseif kind == 'm' then
        S.free(id, 'e')
      elseif kind == 'd' then
        local hold, member = held(id)
        if hold and hold[H_SESSION] == '@' then wake(id, hold, member) end
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
