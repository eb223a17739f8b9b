-- confirm notes that the deliveries of runs are known to be in the queue now.
-- ARGV: pairs of run and n
-- Replies: how many of them were still current
local ids, own, sent = {}, {}, {}
for i = 1, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local records = call('HMGET', RUN, unpack(ids))
for i = 1, #ids do
  local due = R_TEXT{STATE = 'due'; N = ARGV[2 * i]} .. US -- state and n are the first fields
  if records[i] and sub(records[i], 1, #due) == due then
    local k = #own
    own[k + 1], sent[2 * k + 1], sent[2 * k + 2] = ids[i], ms, ids[i]
  end
end
if #own > 0 then
  call('ZREM', PUSH, unpack(own))
  call('ZADD', SENT, unpack(sent))
end
return #own
