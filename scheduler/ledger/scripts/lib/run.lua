-- Runs: their records and the indexes that lead to a claim.

local function pad(at) return format('%016.0f', tonumber(at) or 0) end

-- load returns the record of an outstanding run, or nil. For a record that cannot be read it
-- returns nil and the text; refuse ends such a run, and no other script fails because of it.
local function load(id)
  local record = call('HGET', RUN, id)
  if not record then return nil end
  local run = fields(record)
  if #run >= R_ITEMS - 1 and tonumber(run[R_N]) and tonumber(run[R_ATTEMPT]) and tonumber(run[R_TOKEN]) and
    tonumber(run[R_FAILS]) and tonumber(run[R_CRASHES]) then
    return run
  end
  return nil, record
end

-- unreadable leads the sweep to a run that cannot be read, where its entry in another index is
-- removed: it ends the run.
local function unreadable(id) call('ZADD', PUSH, ms, id) end

local function save(id, run) call('HSET', RUN, id, concat(run, US)) end

-- fresh returns the record of a new run, without its items.
local function fresh(job, queue, trigger, tick)
  local run = {R_NEW}
  run[R_JOB], run[R_QUEUE], run[R_TRIGGER], run[R_TICK], run[R_CREATED] = job, queue, trigger, tick, ms
  return run
end

-- info is the lock space's description of a run's hold or wait.
local function info(id, run) return '{"job":"' .. run[R_JOB] .. '","run":"' .. id .. '"}' end

-- due makes a run due under its next n, or, with n 1, for the first time.
local function due(id, run)
  run[R_STATE], run[R_N] = 'due', format('%d', run[R_N] + 1)
  if run[R_SINCE] == '' then run[R_SINCE] = ms end
  call('ZADD', READY, '0', run[R_QUEUE] .. '\0' .. pad(run[R_SINCE]) .. '\0' .. id)
  call('ZADD', PUSH, ms, id)
  call('ZREM', SENT, id)
  save(id, run)
end

-- dropAside removes the entry of a run that was set aside. Its need is not known here, so this
-- looks in the first places of the queue.
local function dropAside(id, run)
  local from, upto = '[' .. run[R_QUEUE] .. '\0', '(' .. run[R_QUEUE] .. '\1'
  for _ = 1, 64 do
    local member = call('ZRANGEBYLEX', ASIDE, from, upto, 'LIMIT', '0', '1')[1]
    if not member then return end
    local shelf = string.match(member, '^([^%z]*%z[^%z]*)')
    if call('ZREM', ASIDE, shelf .. '\0' .. pad(run[R_SINCE]) .. '\0' .. id) == 1 then return end
    from = '[' .. shelf .. '\1'
  end
end

-- undue removes a run from every index that leads to a claim, and takes the next n, so that
-- deliveries in flight are stale.
local function undue(id, run)
  run[R_N] = format('%d', run[R_N] + 1)
  call('ZREM', READY, run[R_QUEUE] .. '\0' .. pad(run[R_SINCE]) .. '\0' .. id)
  local deliveries = call('ZREM', PUSH, id) + call('ZREM', SENT, id)
  if deliveries == 0 and run[R_STATE] == 'due' then dropAside(id, run) end
end

-- pushes adds a run's delivery to a list of id, n, queue.
local function pushes(list, id, run)
  local k = #list
  list[k + 1], list[k + 2], list[k + 3] = id, run[R_N], run[R_QUEUE]
end

-- watch notes when a run must be checked because its time may be over, if ever. later: when to
-- check a wait instead of at its end, server ms.
local function watch(id, run, later)
  local at = run[R_FIRST] == '' and tonumber(run[R_DEADLINE]) or nil
  local by = run[R_STATE] == 'waiting' and tonumber(later or run[R_WAITBY]) or nil
  if by and (not at or by < at) then at = by end
  if at then
    call('ZADD', LATE, format('%.0f', at), id)
  elseif run[R_DEADLINE] ~= '' or run[R_PATIENCE] ~= '' then
    call('ZREM', LATE, id)
  end
end

-- overdue returns why a run must not start any more, or nil.
local function overdue(run)
  if run[R_FIRST] ~= '' or run[R_DEADLINE] == '' or now < tonumber(run[R_DEADLINE]) then return nil end
  return 'start_deadline: it was ' .. run[R_STATE]
end
