-- requeue moves due runs that have never started to another queue.
-- ARGV: triples of run, its queue, the other queue
-- Replies: the pushes to do (id, n, queue); none for a run that is not due in that queue, or has started before
local list = {}
for i = 1, #ARGV, 3 do
  local id, queue = ARGV[i], ARGV[i + 2]
  local run = load(id)
  if run and run[STATE] == 'due' and run[QUEUE] == ARGV[i + 1] and run[FIRST] == '' then
    undue(id, run)
    run[QUEUE] = queue
    due(id, run)
    pushes(list, id, run)
  end
end
return list
