-- putback: turns an active task into one to retry later, without counting it or changing its
-- message.
--
-- KEYS[1]  HASH asynq's task
-- KEYS[2]  LIST asynq's active tasks of the queue
-- KEYS[3]  ZSET asynq's leases of the queue
-- KEYS[4]  ZSET asynq's tasks to retry, score = time in Unix seconds
-- ARGV[1]  task ID
-- ARGV[2]  time of the next try in Unix seconds
--
-- Reply: 1 if it was put back; 0 if it is no longer active, and nothing was changed.
-- Invariant: the task is in exactly one of asynq's lists.
if redis.call('LREM', KEYS[2], 0, ARGV[1]) == 0 then
  return 0
end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZADD', KEYS[4], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'retry')
return 1
