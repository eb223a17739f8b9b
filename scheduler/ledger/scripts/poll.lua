-- poll is what every worker reads once a second: the time, whether it has duty, what it is asked to
-- stop, and which cursors have moved.
-- ARGV: 1 session  2 the last known revision  3 entries at most  4 ms without a poll after which
--       duty passes on  5 digest of the config that this session carries  6 the last known news;
--       "": none is wanted  7 1 when some of its definitions have drifted, else 0  8 ms after which
--       a definition that no worker carries gives way  9 the last generation in which it
--       has re-asserted everything, or "", as for lags
-- Replies: now (ms), 1 when this session has duty else 0, the revision read up to, what it is asked
--   to stop (a list of runs and reasons; no run: all of them, it must drain), the news read up to,
--   or "" when some after the last known one are lost, the news (a list of run and state), 1 when
--   runs are set aside else 0, ms at which a registration last dropped definitions that no worker
--   carried, or 0, "" when this session has ended, ms since which the config of this session is
--   carried without a pause, or 0, 1 when Redis may lack what the session knows (lags) else 0, and
--   then it reports no news, then job, cursor and active definition (its hash) of each change
-- Duty affects only speed: the session that has it creates ticks first and sweeps. Duty, and with
-- it the desk of the lock space, passes to the first live session that polls when the holder has
-- ended, has not polled in time, or has drifted definitions, which make its ticks late, while this
-- session has none.
local session, stale = ARGV[1], tonumber(ARGV[4])
-- a removal, of nothing, so that a full Redis does not refuse the writes that follow
call('HDEL', LEDGER, '')
local duty = call('HMGET', LEDGER, 'duty', 'seen', 'unfit', 'config:' .. ARGV[5], 'dropped', 'since:' .. ARGV[5])
local mine = duty[1] == session
if not mine and ends(session) then
  mine = not duty[1] or not ends(duty[1]) or tonumber(duty[2]) < now - stale or
    ARGV[7] == '0' and duty[3] == duty[1]
  if mine then
    call('HSET', LEDGER, 'duty', session)
    takeDesk(session)
  end
end
if mine then
  call('HSET', LEDGER, 'seen', ms, 'unfit', ARGV[7] == '1' and session or '')
  redis.pcall('HSETNX', TOTALS, 'since', ms)
end
local dropped, since = '', '0'
if ends(session) then
  dropped, since = duty[5] or '0', duty[6] or '0'
  if not duty[4] or tonumber(duty[4]) < now - ARGV[8] then
    since = ms
    call('HSET', LEDGER, 'since:' .. ARGV[5], ms)
  end
  call('HSET', LEDGER, 'config:' .. ARGV[5], ms, 'carry:' .. session, ARGV[5])
end
local lacking = ARGV[6] ~= '' and lags(ARGV[6], ARGV[9])
local out = {ms, mine and 1 or 0, ARGV[2], asked(session), ARGV[6], {}, call('ZCARD', ASIDE) > 0 and 1 or 0, dropped, since, lacking and 1 or 0}
if ARGV[6] ~= '' and not lacking then
  local news = call('XRANGE', NEWS, '(' .. ARGV[6], '+', 'COUNT', ARGV[3])
  for i = 1, #news do
    out[5], out[6][2 * i - 1], out[6][2 * i] = news[i][1], news[i][2][2], news[i][2][4]
  end
  -- Old news are trimmed. As long as an entry exists that is not newer than the last known one, no
  -- later one is missing.
  if #news == tonumber(ARGV[3]) and #call('XREVRANGE', NEWS, ARGV[6], '-', 'COUNT', '1') == 0 then out[5] = '' end
end
local changed = call('ZRANGEBYSCORE', REV, '(' .. ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', '0', ARGV[3])
if #changed == 0 then return out end
local names, facts = {}, {}
for i = 1, #changed, 2 do
  names[#names + 1], facts[#facts + 1] = changed[i], 'v' .. changed[i]
end
local cursors, texts = call('HMGET', CURSOR, unpack(names)), call('HMGET', FACTS, unpack(facts))
local k = #out
for i = 1, #names do
  out[k + 1], out[k + 2], out[k + 3] = names[i], cursors[i] or '0', string.match(texts[i] or '', '^([^\31]*)')
  k = k + 3
end
out[3] = changed[#changed]
return out
