-- take fetches deliveries of ours, and ends them in the same step: those that wait at the head of a queue, up to the
-- first task that is not one of them. That one, and what stands behind it, is left to asynq's own script.
--
-- KEYS[1]  LIST asynq's pending tasks of the queue; the head is on the right
-- KEYS[2]  STRING exists while the queue is paused
-- KEYS[3]  STRING asynq's count of tasks ended on this day, kept for 90 days   KEYS[4]  STRING of all days
-- KEYS[5]  HASH session \0 number of a fetch -> when it was (server ms) and the ids that it took, joined by \31, until the
--          worker has handled them: the record of what a worker has in hand, which outlives it
-- ARGV[1]  what the key of each task begins with: the names of the tasks' keys are asynq's, which declares them no better
-- ARGV[2]  what the ids of our deliveries begin with, that is our namespace
-- ARGV[3]  what their messages begin with, that is our task type
-- ARGV[4]  how many at most
-- ARGV[5]  when the count of this day may go, Unix seconds
-- ARGV[6]  the field of the record for what this fetch takes, or "" for no record
-- ARGV[7...]  fields of fetches whose deliveries were handled: they are removed
--
-- Reply: 1 when a task that is not ours stands at the head now, else 0; then the ids that were taken, the oldest first.
-- Invariant: what is taken is in none of asynq's lists any more, its hash is gone, and it is on record.
local call = redis.call
if #ARGV > 6 then call('HDEL', KEYS[5], unpack(ARGV, 7)) end
if call('EXISTS', KEYS[2]) == 1 then return {0} end
local ids = call('LRANGE', KEYS[1], -ARGV[4], -1)
local reply, keys = {0}, {}
for i = #ids, 1, -1 do
  local id = ids[i]
  local key = ARGV[1] .. id
  local message = string.sub(id, 1, #ARGV[2]) == ARGV[2] and call('HGET', key, 'msg')
  if not message or string.sub(message, 1, #ARGV[3]) ~= ARGV[3] then
    reply[1] = 1
    break
  end
  keys[#keys + 1] = key
  reply[#keys + 1] = id
end
if #keys > 0 then
  if ARGV[6] ~= '' then
    local clock = call('TIME')
    call('HSET', KEYS[5], ARGV[6], clock[1] .. string.sub(string.format('%06d', clock[2]), 1, 3) .. '\31' .. table.concat(reply, '\31', 2))
  end
  call('LTRIM', KEYS[1], 0, -1 - #keys)
  call('DEL', unpack(keys))
  if call('INCRBY', KEYS[3], #keys) == #keys then call('EXPIREAT', KEYS[3], ARGV[5]) end
  call('INCRBY', KEYS[4], #keys)
end
return reply
