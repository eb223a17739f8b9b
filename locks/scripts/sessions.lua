-- sessions reads who lives: every session with its card, the ended ones that nobody has reaped yet included.
-- ARGV: none
-- Replies: now (ms), then per session: id, card, ms of its lease left
local out = {ms}
local members = call('ZRANGE', EXP, 0, -1, 'WITHSCORES')
for i = 1, #members, 2 do
  if sub(members[i], 1, 1) == 's' then
    local session = sub(members[i], 2)
    out[#out + 1] = session
    out[#out + 1] = call('HGET', META, 'card:' .. session) or ''
    out[#out + 1] = format('%.0f', tonumber(members[i + 1]) - now)
  end
end
return out
