-- mirror reads which runs of ticks are outstanding, one page of them, or looks up some runs. It
-- skips runs without a tick at no cost, however many exist.
-- ARGV: 1 the last known news  2 the last generation in which the caller has re-asserted
--       everything, or "", as for lags  3 the place after which the page begins, or ""  4 runs at
--       most; or, from 5 on, the runs to look up
-- Replies: lags, when Redis may lack what the caller knows | the place after which the next page
--   begins, or "" when this is the last one; then runs. Of those to look up, it replies the ones
--   that are not outstanding
-- JOBS bounds how long a call keeps Redis busy when many jobs have few such runs.
local JOBS, most = 200, tonumber(ARGV[4])
if lags(ARGV[1], ARGV[2]) then return {'lags'} end
if #ARGV > 4 then
  local out = {''}
  for i = 5, #ARGV do
    if call('HEXISTS', RUN, ARGV[i]) == 0 then out[#out + 1] = ARGV[i] end
  end
  return out
end
local out, from = {''}, ARGV[3] == '' and '-' or '(' .. ARGV[3]
local job = string.match(ARGV[3], '^([^%z]*)%z')
for _ = 1, JOBS do
  if job then
    local members = call('ZRANGEBYLEX', OPEN, from, '(' .. job .. '\1', 'LIMIT', '0', most + 1 - #out)
    for i = 1, #members do out[#out + 1] = string.match(members[i], '([^%z]*)$') end
    if #out > most then
      out[1] = members[#members]
      return out
    end
    from = '[' .. job .. '\1'
  end
  local first = call('ZRANGEBYLEX', OPEN, from, '+', 'LIMIT', '0', '1')[1]
  if not first then return out end
  job = string.match(first, '^([^%z]*)')
  from = '[' .. job .. '\0' .. pad(1)
end
out[1] = job .. '\0' .. pad(0) .. '\1'
return out
