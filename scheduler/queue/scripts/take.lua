-- take: fetches our deliveries from the head of a queue and ends them in the same step. It stops at
-- the first foreign task, which asynq's own script then fetches.
--
-- KEYS[1]  LIST asynq's pending tasks of the queue; the head is on the right
-- KEYS[2]  STRING exists while the queue is paused
-- KEYS[3]  STRING asynq's count of tasks ended on this day, kept for 90 days
-- KEYS[4]  STRING asynq's count of tasks ended on all days
-- KEYS[5]  HASH session \0 number of a fetch -> its time (server ms) and the IDs that it took,
--          joined by \31, until the worker has handled them. This record of the deliveries that a
--          worker has in hand survives the worker.
-- KEYS[6]  ZSET sessions of workers that sleep until push wakes them, or until their next poll;
--          score = when they found the queue empty, server ms
-- ARGV[1]  prefix of the keys of tasks; asynq chooses these names and does not declare them either
-- ARGV[2]  prefix of the IDs of our deliveries: our namespace
-- ARGV[3]  prefix of their messages: our task type
-- ARGV[4]  maximum number of deliveries
-- ARGV[5]  expiry of this day's count, Unix seconds
-- ARGV[6]  session, or "": it cannot be woken
-- ARGV[7]  field of the record for this fetch, or "" for no record
-- ARGV[8]  ms after which a sleeper has polled again, or has died
-- ARGV[9...]  fields of handled fetches: they are removed
--
-- Reply: 1 if a foreign task is now at the head, else 0; then the IDs that were taken, oldest
-- first.
-- Invariant: a taken delivery is in none of asynq's lists, its hash is deleted, and it is recorded.
local call = redis.call
local function now()
  local clock = call('TIME')
  return clock[1] .. string.sub(string.format('%06d', clock[2]), 1, 3)
end
local function sleep()
  if ARGV[6] == '' then return end
  local ms = now()
  call('ZREMRANGEBYSCORE', KEYS[6], '-inf', ms - ARGV[8])
  call('ZADD', KEYS[6], ms, ARGV[6])
  call('EXPIREAT', KEYS[6], math.ceil((ms + ARGV[8]) / 1000))
end
if #ARGV > 8 then call('HDEL', KEYS[5], unpack(ARGV, 9)) end
if call('EXISTS', KEYS[2]) == 1 then
  sleep()
  return {0}
end
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
if #ids == 0 then
  sleep()
elseif ARGV[6] ~= '' then
  call('ZREM', KEYS[6], ARGV[6])
end
if #keys > 0 then
  if ARGV[7] ~= '' then call('HSET', KEYS[5], ARGV[7], now() .. '\31' .. table.concat(reply, '\31', 2)) end
  call('LTRIM', KEYS[1], 0, -1 - #keys)
  call('DEL', unpack(keys))
  if call('INCRBY', KEYS[3], #keys) == #keys then call('EXPIREAT', KEYS[3], ARGV[5]) end
  call('INCRBY', KEYS[4], #keys)
end
return reply
