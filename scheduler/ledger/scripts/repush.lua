-- repush takes the next n for a run whose delivery has gone.
-- ARGV: 1 run  2 n of that delivery
-- Replies: the pushes to do (id, n, queue), none when the run is not due under that n
local id, list = ARGV[1], {}
local run = load(id)
if run and run[STATE] == 'due' and run[N] == ARGV[2] then
  due(id, run)
  pushes(list, id, run)
end
return list
