-- requeue moves runs that have never started to another queue: due ones, and those that wait for
-- their locks. A wait keeps its ticket, and obeys the pause of the new queue from then on.
-- ARGV: triples of run, its queue, the other queue
-- Replies: how many of the triples were examined, the caller sends the others again; a list of the
--   runs that moved; then the pushes to do (id, n, queue). A run moves only if it is due or waits
--   in that queue, and has never started
-- How many runs are examined in one script, and how many names of locks the moved ones may want.
local MOST, NAMES = 100, 1000
local list, examined, moved, names, S = {}, 0, {}, 0, nil
for i = 1, #ARGV, 3 do
  if examined == MOST or names > NAMES then break end
  examined = examined + 1
  local id, queue = ARGV[i], ARGV[i + 2]
  local run = load(id)
  local isdue = run and run[R_STATE] == 'due'
  if run and (isdue or run[R_STATE] == 'waiting') and run[R_QUEUE] == ARGV[i + 1] and run[R_FIRST] == '' then
    if isdue then undue(id, run) end
    if run[R_WAITBY] ~= '' then -- the pauses of the new queue alone are known to what ends the wait
      run[R_WAITBY] = format('%.0f', run[R_WAITBY] + stopped(run[R_QUEUE], run[R_WAITBY] - run[R_PATIENCE]))
    end
    run[R_QUEUE], names = queue, names + #run - R_ITEMS + 1
    moved[#moved + 1] = id
    if isdue then
      due(id, run)
      pushes(list, id, run)
    else
      save(id, run)
      watch(id, run)
    end
    if run[R_WAITS] == '1' then
      S = S or space()
      S.move('+' .. id, queue)
    end
  end
end
if S then
  S.settle()
  offered(S, list)
end
table.insert(list, 1, examined)
table.insert(list, 2, moved)
return list
