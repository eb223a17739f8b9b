-- Totals: how many ends there were, see the key totals.

-- addTotal counts n ends of one kind. Counting never hinders what is counted: where another program
-- wrote a key of another type, or a field that is not a number, it does nothing.
local function addTotal(n, ...) redis.pcall('HINCRBY', TOTALS, concat({...}, US), n) end

-- totalRun counts the end of a run. A success after its attempt was counted is late: that attempt
-- had another outcome.
local function totalRun(run)
  local late = run[R_STATE] == 'succeeded' and run[R_REASON] ~= ''
  addTotal(1, 'r', late and 'late' or run[R_STATE], run[R_TRIGGER], run[R_JOB])
end
