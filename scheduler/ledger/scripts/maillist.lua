-- maillist reads what waits to be sent, and what became of the rest, by target.
-- ARGV: targets, also those without any message
-- Replies: for each target that is named or has messages, as long as these are few: target, how
--   many messages wait, ms of the first of them ("0": none waits), ms from which the next request
--   may be sent, requests for it that have failed, how many were sent, could not be sent, and were
--   not stored, ms of the last failure and the error, joined by \31 ("" without one)
local MOST = 200 -- targets that are not named
local names, seen, from = {}, {}, '-'
for i = 1, #ARGV do names[i], seen[ARGV[i]] = ARGV[i], true end
for _ = 1, MOST do
  local member = call('ZRANGEBYLEX', MAIL, from, '+', 'LIMIT', '0', '1')[1]
  if not member then break end
  local target = string.match(member, '^([^%z]*)')
  if not seen[target] then names[#names + 1] = target end
  from = '[' .. target .. '\1'
end
local out = {}
for i = 1, #names do
  local target = names[i]
  local low, high = '[' .. target .. '\0', '(' .. target .. '\1'
  -- The first message of the job that comes first, by its name; jobs of one target fail together.
  local member = call('ZRANGEBYLEX', MAIL, low, high, 'LIMIT', '0', '1')[1]
  local at, next, tries = '0', '0', '0'
  if member then
    local group = string.match(member, '^[^%z]*%z[^%z]*')
    at = string.match(string.match(member, '^[^%z]*%z[^%z]*%z[^%z]*%z(.*)$') or '', M_MATCH[[ID EVENT (AT)]]) or '0'
    next = format('%.0f', tonumber(call('ZSCORE', POST, group) or '0'))
    tries = string.match(call('HGET', MAILED, 'batch:' .. group) or '', P_MATCH[[UPTO (TRIES)]]) or '0'
  end
  local facts = call('HMGET', MAILED, 'sent:' .. target, 'unsent:' .. target, 'dropped:' .. target, 'error:' .. target)
  local k = #out
  out[k + 1], out[k + 2], out[k + 3], out[k + 4], out[k + 5] = target, call('ZLEXCOUNT', MAIL, low, high), at, next, tries
  for f = 1, 3 do out[k + 5 + f] = facts[f] or '0' end
  out[k + 9] = facts[4] or ''
end
return out
