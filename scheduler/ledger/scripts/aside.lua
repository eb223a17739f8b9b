-- aside sets a run aside that the worker with its delivery cannot do: the run stays due, without a
-- delivery, until a worker that has what it needs picks it. If it is the first with this need in
-- its queue, all workers get a notice; those that can do it pick runs until none is left.
-- ARGV: 1 run  2 n of its delivery  3 its need
-- Replies: 1; 0 for a run that is not due under this n
local id = ARGV[1]
local run = load(id)
if not run or run[R_STATE] ~= 'due' or run[R_N] ~= ARGV[2] then return {0} end
due(id, run) -- under the next n: a copy of the delivery is stale now
call('ZREM', PUSH, id)
local shelf = run[R_QUEUE] .. '\0' .. ARGV[3]
local first = call('ZLEXCOUNT', ASIDE, '[' .. shelf .. '\0', '(' .. shelf .. '\1') == 0
call('ZADD', ASIDE, '0', shelf .. '\0' .. pad(run[R_SINCE]) .. '\0' .. id)
if first then notifyAll('n' .. US .. 'aside', 500) end
return {1}
