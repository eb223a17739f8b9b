-- mailsent records how the request with a batch of messages ended.
-- ARGV: 1 target  2 job  3 number of the last message of the batch  4 outcome: sent | failed
--       5 sent: ms until the next batch of this target and job; failed: ms until the next try 6 ms
--       after which a message that could not be sent is abandoned  7 the error  8 entry for the
--       audit, if it is abandoned  9 entry for the audit about messages that were not stored, or
--       "": it counts those that the audit does not have yet  10 how many these were when the batch
--       was taken
-- Replies: sent | later: it is tried again | over: it was abandoned, and is in the audit |
--   stale: this batch has ended before; nothing was changed
local group = ARGV[1] .. '\0' .. ARGV[2]
local upto, tries = string.match(call('HGET', MAILED, 'batch:' .. group) or '', P_MATCH[[(UPTO) (TRIES)]])
if upto ~= ARGV[3] then return {'stale'} end
local members = call('ZRANGEBYLEX', MAIL, '[' .. group .. '\0', '[' .. group .. '\0' .. upto .. '\1')
if ARGV[9] ~= '' then
  -- Another batch of the target may have brought them into the audit since.
  local silent = math.min(tonumber(call('HGET', MAILED, 'silent:' .. ARGV[1]) or '') or 0, tonumber(ARGV[10]))
  if silent > 0 then
    call('HINCRBY', MAILED, 'silent:' .. ARGV[1], format('%.0f', -silent))
    audit((string.gsub(ARGV[9], '\31[^\31]*', '\31' .. format('%.0f', silent), 1)))
  end
end
local outcome = ARGV[4]
if outcome == 'failed' then
  call('HSET', MAILED, 'error:' .. ARGV[1], ms .. US .. ARGV[7])
  local first = string.match(members[1] or '', '^[^%z]*%z[^%z]*%z[^%z]*%z(.*)$')
  local at = tonumber(string.match(first or '', M_MATCH[[ID EVENT (AT)]]) or '')
  outcome = at and now - at < tonumber(ARGV[6]) and 'later' or 'over'
end
if outcome == 'later' then
  call('HSET', MAILED, 'batch:' .. group, P_TEXT{UPTO = upto; TRIES = format('%d', tries + 1)})
  call('ZADD', POST, format('%.0f', now + ARGV[5]), group)
  return {outcome}
end
if #members > 0 then call('ZREM', MAIL, unpack(members)) end
call('HDEL', MAILED, 'batch:' .. group)
call('HINCRBY', MAILED, (outcome == 'sent' and 'sent:' or 'unsent:') .. ARGV[1], #members)
if outcome == 'sent' then call('HDEL', MAILED, 'error:' .. ARGV[1]) else audit(ARGV[8]) end
-- It stays for this time, so that the messages of the next seconds wait for each other.
call('ZADD', POST, format('%.0f', now + ARGV[5]), group)
return {outcome}
