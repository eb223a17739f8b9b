-- assert re-asserts what a session holds, in pages, after the space has lost some or all of its
-- writes.
-- ARGV: 1 session  2 lease, ms  3 card  4 and 5 the ID and epoch that it received, '' for an empty
--         space
--       6 an ID and a format for an empty space, as for establish
--       7 and 8 the length of a grace period, as in greet
--       9 the highest token that the session has seen  10 1: this is the last page, else 0
--       11... per hold, in the order of their tokens: its member in the key hold, as it was
--         granted; the holds that it is nested in, joined by spaces
-- Replies:
--   ok, id, epoch, ms of the grace period left, then the holds of this page that lost to others
--   again, id, epoch: the space is not, or no longer, at that ID and epoch: begin with the first
--     page
--   late: the grace period is over, others may have been granted what the session holds
-- Of two holds on one resource the one with the higher token wins; the other holder is notified.
-- The session is renewed only after its last page was accepted. A hold in Redis that is not
-- asserted is a stray: the session releases it, as always. Sending it twice changes nothing more.
-- A hold that Redis still has keeps its modes.
-- The first write is a removal, of nothing, so that a full Redis does not refuse it.
local session = ARGV[1]
notice(ARGV[7], ARGV[8])
local id, epoch, lost = unpack(call('HMGET', META, 'id', 'epoch', 'lost'))
if ARGV[4] ~= (id or '') or ARGV[5] ~= (epoch or '') then return {'again', id or '', epoch or ''} end
call('ZREM', EXP, '')
local created = not id
if created then
  id, epoch = establish(ARGV[6])
  pause(ARGV[7], ARGV[8])
elseif not lost and call('EXISTS', SEQ) == 0 then
  -- Another client has created the space, but nothing was granted in it yet: there is still time.
  pause(ARGV[7], ARGV[8])
end
local S = space()
local left = S.grace()
if not left or not (lost or everLost()) then return {'late'} end

call('ZADD', EXP, format('%.0f', now + math.max(tonumber(ARGV[2]), left)), 's' .. session)
call('HSET', META, 'card:' .. session, ARGV[3])
if created then attribute(session) end
know(session, ARGV[2], ARGV[10] == '1' and epoch or '')
local last = call('GET', SEQ)
if ARGV[9] ~= '0' and (not last or tonumber(last) < tonumber(ARGV[9])) then call('SET', SEQ, ARGV[9]) end

readPage()
local refused = {}
for k = 1, #asserted.ids do
  if not together(k) then
    flush()
    local hid, member, nested = asserted.ids[k], ARGV[9 + 2 * k], nil
    local record = fields(member)
    for ancestor in string.gmatch(ARGV[10 + 2 * k], '[^ ]+') do
      nested = nested or {}
      nested[ancestor] = true
    end
    local known, at = held(hid)
    local rests = known and known[H_SESSION] == '@' -- as if it had been released
    -- Redis has lost the grant, and still has the wait.
    if not known then S.drop(hid, 'g') end
    if not known and not S.admit(hid, record, member, nested) then
      refused[#refused + 1] = hid
    elseif not known or rests then
      if rests then
        call('ZREM', HOLD, at)
        call('ZREM', EXP, 'd' .. hid)
        -- This page may be older than a downgrade, or Redis may have lost one.
        for i = H_ITEMS, #known do record[i] = known[i] end
        member = concat(record, US)
      end
      call('ZADD', HOLD, '0', member)
      limitUntil(hid, record[H_LIMITS])
    end
    asserted.owners, asserted.looked = {}, {}
  end
end
flush()
S.reap()
S.tell()
return {'ok', id, epoch, format('%.0f', left), unpack(refused)}
