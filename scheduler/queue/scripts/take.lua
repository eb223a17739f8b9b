-- take: fetches from the head of a queue either our deliveries, which it ends in the same step, or
-- foreign tasks, as asynq's own script fetches one. It stops at the first one of the other kind.
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
-- KEYS[7]  LIST asynq's active tasks of the queue
-- KEYS[8]  ZSET asynq's leases of the queue
-- ARGV[1]  prefix of the keys of tasks; asynq chooses these names and does not declare them either
-- ARGV[2]  prefix of the IDs of our deliveries: our namespace
-- ARGV[3]  prefix of their messages: our task type
-- ARGV[4]  maximum number of deliveries
-- ARGV[5]  expiry of this day's count, Unix seconds
-- ARGV[6]  session, or "": it cannot be woken
-- ARGV[7]  field of the record for this fetch, or "" for no record
-- ARGV[8]  ms after which a sleeper has polled again, or has died
-- ARGV[9]  seconds for which the leases of foreign tasks last
-- ARGV[10] maximum number of foreign tasks, at least that of deliveries, at most 99
-- ARGV[11] random text, with which the words of this fetch begin
-- ARGV[12...]  fields of handled fetches: they are removed
--
-- Reply: 0, then the IDs of the deliveries that were taken, oldest first; or 1 and the time (server
-- ms), then for each foreign task its ID, its message, and the time (server ms) at which it got its
-- word, a blank and the word; or "" if it has none. A 1 alone: it removed the IDs of tasks that a
-- tool has deleted, and there may be more in the queue.
-- Invariant: a taken delivery is in none of asynq's lists, its hash is deleted, and it is recorded.
-- A taken foreign task is active, with a lease. It got its word from the first take by a build that
-- knows words, in a field of its hash that asynq leaves alone. It has none if it had been tried
-- before, since that attempt may have adopted it under another word.
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
local function forget()
  if #ARGV > 11 then call('HDEL', KEYS[5], unpack(ARGV, 12)) end
end
-- tried reports whether asynq has counted a task as tried, in field 6 of its protobuf message, or
-- the message cannot be read.
local function tried(message)
  local at, is = 1, false
  local function number()
    local n, unit = 0, 1
    repeat
      local byte = string.byte(message, at)
      if not byte then return nil end
      at, n, unit = at + 1, n + byte % 128 * unit, unit * 128
    until byte < 128
    return n
  end
  while at <= #message do
    local tag = number()
    local kind = tag and tag % 8
    local n = kind == 1 and 8 or kind == 5 and 4 or (kind == 0 or kind == 2) and number()
    if not n then return true end
    if tag == 48 then is = n > 0 end
    if kind ~= 0 then at = at + n end
  end
  return is
end
if call('EXISTS', KEYS[2]) == 1 then
  forget()
  sleep()
  return {0}
end
local ids, most = call('LRANGE', KEYS[1], -ARGV[10], -1), tonumber(ARGV[4])
local reply, keys, n = {0}, {}, 0
for i = #ids, 1, -1 do
  local id, key = ids[i], ARGV[1] .. ids[i]
  local message = call('HGET', key, 'msg')
  local ours = message and string.sub(id, 1, #ARGV[2]) == ARGV[2] and string.sub(message, 1, #ARGV[3]) == ARGV[3]
  if n == 0 then reply[1] = ours and 0 or 1 end
  if ours ~= (reply[1] == 0) or ours and n == most then break end
  n = n + 1
  if message then -- else a tool has deleted the task
    keys[#keys + 1], reply[#reply + 1] = key, id
    if not ours then reply[#reply + 1] = message end
  end
end
if n == 0 then
  forget()
  sleep()
  return reply
end
-- The first write may fail, since a key has another type or the memory is full. Then nothing has
-- changed.
if #keys == 0 then
  call('LTRIM', KEYS[1], 0, -1 - n)
elseif reply[1] == 1 then
  call('LLEN', KEYS[7])
  local ms, tasks = now(), {}
  local expiry = string.format('%.0f', math.floor(ms / 1000) + ARGV[9])
  for i = 2, #reply, 2 do call('ZADD', KEYS[8], expiry, reply[i]) end
  for i = 2, #reply, 2 do call('LPUSH', KEYS[7], reply[i]) end
  call('LTRIM', KEYS[1], 0, -1 - n)
  for i = 1, #keys do
    local id, message, word = reply[2 * i], reply[2 * i + 1], call('HGET', keys[i], 'lockstep:word')
    if word or tried(message) then
      call('HSET', keys[i], 'state', 'active')
    else
      word = ms .. ' ' .. ARGV[11] .. string.format('%02d', i)
      call('HSET', keys[i], 'state', 'active', 'lockstep:word', word)
    end
    call('HDEL', keys[i], 'pending_since')
    tasks[3 * i - 2], tasks[3 * i - 1], tasks[3 * i] = id, message, word or ''
  end
  reply = {1, ms, unpack(tasks)}
else
  if ARGV[7] ~= '' then call('HSET', KEYS[5], ARGV[7], now() .. '\31' .. table.concat(reply, '\31', 2)) end
  call('LTRIM', KEYS[1], 0, -1 - n)
  call('DEL', unpack(keys))
  if call('INCRBY', KEYS[3], #keys) == #keys then call('EXPIREAT', KEYS[3], ARGV[5]) end
  call('INCRBY', KEYS[4], #keys)
end
forget()
if ARGV[6] ~= '' then call('ZREM', KEYS[6], ARGV[6]) end
return reply
