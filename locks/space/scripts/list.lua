-- list reads one page of holds or of waits, of one session or of all.
-- ARGV: 1 h or w  2 from, as for ZRANGEBYLEX  3 to  4 limit
-- Replies: now (ms), where the next page begins ('' after the last one), then per entry: index
--   member, record (of a wait), ms left: of its session's lease, or of the rest of a resting hold;
--   0 for waits of the space
-- A page of large bundles ends before its limit: BYTES and SOME, the number of entries read at
-- once, bound how long the script keeps Redis busy.
local BYTES, SOME = 256 * 1024, 50
local out, from, left, bytes = {ms, ''}, ARGV[2], tonumber(ARGV[4]), 0
local key, waits = ARGV[1] == 'h' and HOLD or IDX, ARGV[1] == 'w'

local leases = {} -- of the sessions of this page; false for one that has ended
local function lease(session)
  if leases[session] == nil then leases[session] = ends(session) or false end
  return leases[session]
end

repeat
  local some = math.min(SOME, left)
  local members, ids, records = call('ZRANGEBYLEX', key, from, ARGV[3], 'LIMIT', '0', some), {}, {}
  for i = 1, #members do
    ids[i] = string.match(members[i], waits and '^[^%z]*%z.%z(.*)$' or H_MATCH[[SESSION=[^%z]*%z([^\31]*)]])
  end
  if waits and #ids > 0 then records = call('HMGET', WAIT, unpack(ids)) end
  for i = 1, #members do
    local session, until_ = string.match(members[i], '^[^%z]*'), nil
    if session ~= '@' then
      until_ = lease(session)
    elseif not waits then
      until_ = tonumber(call('ZSCORE', EXP, 'd' .. ids[i]))
    end
    local n, record = #out, records[i] or ''
    out[n + 1], out[n + 2] = members[i], record
    out[n + 3] = format('%.0f', until_ and math.max(0, until_ - now) or 0)
    bytes = bytes + #members[i] + #record
  end
  left = left - #members
  if #members < some then return out end
  from = '(' .. members[some]
until left == 0 or bytes >= BYTES
out[2] = from
return out
