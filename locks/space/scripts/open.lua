-- open begins a session. An ID that the space knows is refused: IDs are never used twice. The first
-- session of an empty space creates it.
-- ARGV: 1 session  2 lease, ms  3 card
--       4 an ID and a format for an empty space, as for establish
--       5 how long a new space grants nothing, ms; '' for 1 s if the server has not been up for as
--         long as the lease, else 0
--       6 how much the space keeps of what has ended, as for retain; none: this build's client
--         leaves that as it is  7 1: instead of the bounds that it has, else 0
-- Replies:
--   open, now (ms), the space's ID, epoch, longest lease of a session (ms), 1 if what Redis has
--     lost can still be re-asserted, else 0, the format that the space is written in
--   taken
local session = ARGV[1]
if call('ZSCORE', EXP, 's' .. session) or call('HEXISTS', META, 'card:' .. session) == 1 then return {'taken'} end
local number
if call('HEXISTS', META, 'id') == 0 then
  local _, up = identity()
  _, _, number = establish(ARGV[4])
  local pauses = tonumber(ARGV[5]) or up and up * 1000 < tonumber(ARGV[2]) and 1000 or 0
  if pauses > 0 then
    call('HSET', META, 'grace', format('%.0f', now + pauses))
    call('ZADD', EXP, '0', 'e')
  end
end
local id, epoch, lost, grace = unpack(call('HMGET', META, 'id', 'epoch', 'lost', 'grace'))
local still = lost and tonumber(grace or 0) > now or not lost and call('EXISTS', SEQ) == 0
call('ZADD', EXP, now + ARGV[2], 's' .. session)
call('HSET', META, 'card:' .. session, ARGV[3])
know(session, ARGV[2], epoch)
if ARGV[6] then retain(ARGV[6], ARGV[7] == '1') end
if number then attribute(session) else number = raise(session) end
local longest = call('ZREVRANGEBYLEX', IDX, '(~m', '[~l', 'LIMIT', '0', '1')[1]
return {'open', ms, id, epoch, tonumber(sub(longest, 3, 11)), still and 1 or 0, number}
