-- The fields of a run's record. Items, the bundle of its attempts, follow.
local STATE, N, JOB, QUEUE, TRIGGER, TICK, CREATED, SINCE = 1, 2, 3, 4, 5, 6, 7, 8
local TOKEN, HOLDER, SESSION, ATTEMPT, STARTED, FIRST = 9, 10, 11, 12, 13, 14
local FAILS, CRASHES, REASON, FINISHED, CLOSED, AT, BY, UPTO, WAITS = 15, 16, 17, 18, 19, 20, 21, 22, 23
local SERIAL = 24   -- 1: its bundle has the lock of its job, so ticks start in their order
local DEADLINE = 25 -- server ms after which it must not start for the first time
local PATIENCE, ONBUSY = 26, 27 -- ms that it waits for its bundle, and what happens to it then
local WAITBY = 28   -- server ms at which that is over
-- when it first went to wait, and what was in its way (joined by \30)
local WAITED, BLOCKER = 29, 30
local STOP = 31     -- why it was asked to stop
-- of its holds, ms: at most, at least, after a crash; joined by commas, '' for none
local LIMITS = 32
local R_ITEMS = 33
