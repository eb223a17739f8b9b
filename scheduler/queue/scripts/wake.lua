-- wake: wakes the worker that fell asleep last, for one that was woken and has no free slot.
--
-- KEYS[1]  ZSET sessions of sleeping workers, as in take
-- ARGV[1]  prefix of the channels of sessions
-- ARGV[2]  message that wakes a worker
--
-- Reply: 1 if a worker is woken, 0 if none sleeps.
-- Invariant: a worker that is sent the message does not count as asleep.
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0)[1]
if not last then return 0 end
redis.call('ZREM', KEYS[1], last)
redis.call('PUBLISH', ARGV[1] .. last, ARGV[2])
return 1
