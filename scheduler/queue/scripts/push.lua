-- push: puts several deliveries into a queue, each as asynq's own script does. They share the calls
-- of Redis.
--
-- KEYS[1]  LIST asynq's pending tasks of the queue
-- KEYS[2...]  HASH asynq's task, for each delivery
-- ARGV[1]  time in Unix nanoseconds
-- ARGV[2...]  for each delivery: its message, and its ID
--
-- Reply: how many were not in the queue yet.
-- Invariant: a task that exists, in whatever state, stays as it is.
local ids, new, seen = {}, {}, {}
for i = 2, #KEYS do
  if not seen[KEYS[i]] and redis.call('EXISTS', KEYS[i]) == 0 then
    seen[KEYS[i]] = true
    new[#new + 1], ids[#ids + 1] = i, ARGV[2 * i - 1]
  end
end
if #new == 0 then return 0 end
redis.call('LPUSH', KEYS[1], unpack(ids)) -- first, since it is the one that may fail
for k = 1, #new do
  local i = new[k]
  redis.call('HSET', KEYS[i], 'msg', ARGV[2 * i - 2], 'state', 'pending', 'pending_since', ARGV[1])
end
return #new
