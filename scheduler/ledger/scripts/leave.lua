-- leave notes that a session no longer carries a config. Definitions that no other session carries
-- give way, sooner than when their worker vanishes. A session that carries nothing any more has no
-- duty either.
-- ARGV: 1 session  2 digest of the config that it had before another one; "": it leaves the one
--       that it last polled with, and polls no more  3 ms after which a definition that no worker
--       carries gives way  4 ms for which this config is kept nevertheless, for a worker that
--       replaces this one
-- Replies: 1 when its definitions give way, else 0
-- A worker that carries the config still polls with it, which undoes this.
local session, digest, mine, others = ARGV[1], ARGV[2], nil, false
local all = call('HGETALL', LEDGER)
local ledger = {}
for i = 1, #all, 2 do ledger[all[i]] = all[i + 1] end

-- older reports whether a worker of an older build is among the first 1,000 sessions. Such a worker
-- does not report what it carries, so it may also carry the config. A worker's card names its
-- queues; that of an older build does not claim to pick runs.
local function older()
  local sessions = sessionsByLease('1000')
  for i = 1, #sessions do
    local other = sessions[i]
    if other ~= session and not ledger['carry:' .. other] and ends(other) then
      local card = cardOf(other)
      if string.find(card, '"queues":', 1, true) and not string.find(card, '"picks":true', 1, true) then return true end
    end
  end
  return false
end

mine = ledger['carry:' .. session]
if digest == '' then digest = mine or '' end
for field, value in pairs(ledger) do
  local other = value == digest and string.match(field, '^carry:(.*)$')
  if other and other ~= session and ends(other) then others = true end
end
others = others or digest ~= '' and older()
if mine == digest then call('HDEL', LEDGER, 'carry:' .. session) end
local left = digest ~= '' and not others
if left then
  call('HINCRBY', LEDGER, 'leaves', 1)
  local most, seen, was = now - ARGV[3] - 1 + ARGV[4], ledger['config:' .. digest] or '0', ledger['was:' .. digest] or '0'
  if tonumber(seen) > most then
    -- The jobs of this config were carried until now all the same: they are removed only much
    -- later.
    if tonumber(seen) > tonumber(was) then was = seen end
    call('HSET', LEDGER, 'config:' .. digest, format('%.0f', most), 'was:' .. digest, was)
  end
end
local duty = ARGV[2] == '' and ledger.duty == session
if duty then call('HDEL', LEDGER, 'duty') end
if duty or left and ARGV[4] == '0' then notifyAll('n' .. US .. 'left', 500) end
return {left and 1 or 0}
