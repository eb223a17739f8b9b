-- settle: ends foreign tasks that were adopted, each as asynq's own script does, and puts others
-- back to come again later. That is not counted and does not change their messages.
--
-- KEYS[1]  LIST asynq's active tasks of the queue
-- KEYS[2]  ZSET asynq's leases of the queue
-- KEYS[3]  ZSET asynq's tasks to retry, score = time in Unix seconds
-- KEYS[4]  ZSET asynq's completed tasks, score = time in Unix seconds when they are deleted
-- KEYS[5]  STRING asynq's count of tasks ended on this day, kept for 90 days
-- KEYS[6]  STRING asynq's count of tasks ended on all days
-- ARGV[1]  prefix of the keys of tasks; asynq chooses these names and does not declare them either
-- ARGV[2]  expiry of this day's count, Unix seconds
-- ARGV[3]  when the tasks that go back come again, Unix seconds
-- ARGV[4...]  for each task: its ID; back, done, or the time until which asynq keeps it as
--          completed; its message then, else ""; the key of its unique lock, or ""
--
-- Reply: how many were settled. Others are no longer active, and nothing was changed.
-- Invariant: a task is in exactly one of asynq's lists, or deleted.
local call = redis.call
local settled, ended = 0, 0
for i = 4, #ARGV, 4 do
  local id, what, key, unique = ARGV[i], ARGV[i + 1], ARGV[1] .. ARGV[i], ARGV[i + 3]
  if call('LREM', KEYS[1], 0, id) > 0 then
    settled = settled + 1
    call('ZREM', KEYS[2], id)
    if what == 'back' then
      call('ZADD', KEYS[3], ARGV[3], id)
      call('HSET', key, 'state', 'retry')
    else
      ended = ended + 1
      if what == 'done' then
        call('DEL', key)
      else
        call('ZADD', KEYS[4], what, id)
        call('HSET', key, 'msg', ARGV[i + 2], 'state', 'completed')
        call('HDEL', key, 'lockstep:word') -- if a person runs it again, that is a new request
      end
      if unique ~= '' and call('GET', unique) == id then call('DEL', unique) end
    end
  end
end
if ended > 0 then
  if call('INCRBY', KEYS[5], ended) == ended then call('EXPIREAT', KEYS[5], ARGV[2]) end
  call('INCRBY', KEYS[6], ended)
end
return settled
