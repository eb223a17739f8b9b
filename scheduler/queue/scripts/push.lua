-- push: puts several deliveries into a queue, each as asynq's own script does, or at its head. They
-- share the calls of Redis. It wakes as many sleeping workers, those that fell asleep last.
--
-- KEYS[1]  LIST asynq's pending tasks of the queue; the head is on the right
-- KEYS[2]  ZSET sessions of sleeping workers, as in take
-- KEYS[3...]  HASH asynq's task, for each delivery
-- ARGV[1]  time in Unix nanoseconds
-- ARGV[2]  prefix of the channels of sessions
-- ARGV[3]  message that wakes a worker
-- ARGV[4]  'head': they come first in the queue, in this order; 'tail': last
-- ARGV[5...]  for each delivery: its message, and its ID
--
-- Reply: how many were not in the queue yet.
-- Invariant: a task that exists, in whatever state, stays as it is.
local call = redis.call
local ids, new, seen = {}, {}, {}
local push, from, to, step = 'LPUSH', 3, #KEYS, 1
if ARGV[4] == 'head' then push, from, to, step = 'RPUSH', #KEYS, 3, -1 end
for i = from, to, step do
  if not seen[KEYS[i]] and call('EXISTS', KEYS[i]) == 0 then
    seen[KEYS[i]] = true
    new[#new + 1], ids[#ids + 1] = i, ARGV[2 * i]
  end
end
if #new == 0 then return 0 end
local since, head = ARGV[1], push == 'RPUSH' and redis.pcall('LINDEX', KEYS[1], -1)
if type(head) == 'string' then -- those that come before it have waited for at least as long
  local id = string.sub(KEYS[new[1]], 1, -#ids[1] - 1) .. head
  since = redis.pcall('HGET', id, 'pending_since')
  if type(since) ~= 'string' or #since > #ARGV[1] or #since == #ARGV[1] and since > ARGV[1] then since = ARGV[1] end
end
call(push, KEYS[1], unpack(ids)) -- first, since it is the one that may fail
for k = 1, #new do
  local i = new[k]
  call('HSET', KEYS[i], 'msg', ARGV[2 * i - 1], 'state', 'pending', 'pending_since', since)
end
-- A message that is lost, or refused, costs the time until the next poll.
local asleep = redis.pcall('ZREVRANGE', KEYS[2], 0, #new - 1)
if #asleep > 0 then
  redis.pcall('ZREM', KEYS[2], unpack(asleep))
  for k = 1, #asleep do redis.pcall('PUBLISH', ARGV[2] .. asleep[k], ARGV[3]) end
end
return #new
