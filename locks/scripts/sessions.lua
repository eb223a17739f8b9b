-- sessions reads one page of the sessions with their cards, the ended ones that no script has reaped yet included.
-- ARGV: 1 from, as ZRANGEBYLEX wants it: '[~l' for the first page  2 limit; 0: only the time is wanted
-- Replies: now (ms), from where the next page begins ('' after the last one), then per session: id, card, ms of its lease
-- left
-- It goes along the index of leases, not along the timer wheel, which has entries of holds and waits, too.
local out, limit = {ms, ''}, tonumber(ARGV[2])
if limit == 0 then return out end
local members = call('ZRANGEBYLEX', IDX, ARGV[1], '(~m', 'LIMIT', '0', limit)
for i = 1, #members do
  local session = string.match(members[i], '%z(.*)$')
  local at = call('ZSCORE', EXP, 's' .. session)
  if at then
    out[#out + 1] = session
    out[#out + 1] = call('HGET', META, 'card:' .. session) or ''
    out[#out + 1] = format('%.0f', tonumber(at) - now)
  end
end
if #members == limit then out[2] = '(' .. members[limit] end
return out
