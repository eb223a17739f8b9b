-- sessions reads one page of the sessions with their cards, including ended ones that are not
-- reaped yet.
-- ARGV: 1 from, as for ZRANGEBYLEX: '[~l' for the first page  2 limit; 0: read only the time
-- Replies: now (ms), where the next page begins ('' after the last one), then per session: ID,
--   card, ms of its lease left
-- It reads the index of leases, not the timer wheel, which also has entries of holds and waits.
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
