-- assert re-asserts what a worker knows of one job that Redis may have lost.
-- ARGV: 1 history: runs, or "" to leave it unchanged  2 history: ms  then four for each run: ran,
--       run, its record while it ran, arguments and definition (as embody takes it), joined by
--       \31; or ended, run, its final state, its tick (ms) or ""; or cursor, job, its cursor (ms),
--       ms for which that is remembered ("": an older build): for a job that this worker does not
--       carry
-- Replies: ok | late: nothing is re-asserted at this time
-- The furthest wins: an end, then an attempt with a higher token, then a due run. An end that was
-- only heard of gives way to that of a worker that knows how it came about. Locks that this frees
-- pass to no request before the grace period ends.
if not reasserting() then return {'late'} end
local S = nil

for i = 3, #ARGV, 4 do
  local kind, id = ARGV[i], ARGV[i + 1]
  local run = kind ~= 'cursor' and load(id)
  if kind == 'ran' then
    local mine = fields(ARGV[i + 2])
    local token = tonumber(mine[R_TOKEN])
    local over, past, log = outdone(id, token)
    if not over and not (run and tonumber(run[R_TOKEN]) >= token) then
      local at = string.find(ARGV[i + 3], US, 1, true)
      local definition = sub(ARGV[i + 3], at + 1)
      checkBodies(definition)
      if past then
        call('HDEL', HIST, id)
        call('ZREM', DONE, id)
        -- Its earlier attempts stay. An older run of this id has none of them.
        log = past[R_CREATED] == mine[R_CREATED] and earlier(log, mine[R_TOKEN]) or ''
        if log ~= '' then call('HSET', LOG, id, log) end
      end
      if run then
        undue(id, run)
        settled(id, run)
        call('ZREM', TIMER, id)
        call('ZREM', LATE, id)
        if run[R_WAITS] == '1' then
          S = S or space()
          S.drop('+' .. id)
        end
        if tonumber(run[R_N]) > tonumber(mine[R_N]) then mine[R_N] = run[R_N] end
      end
      mine[R_N] = format('%d', mine[R_N] + 1)
      save(id, mine)
      embody(id, sub(ARGV[i + 3], 1, at - 1), definition)
      call('ZADD', OPEN, '0', mine[R_JOB] .. '\0' .. pad(mine[R_TICK]) .. '\0' .. id)
      works(id, mine)
      if mine[R_TICK] ~= '' then announce(id, '') end
    end
  elseif kind == 'cursor' then
    recall(id, call('HGET', CURSOR, id), ARGV[i + 2])
    -- register needs to know since when no worker may have carried the job
    if ARGV[i + 3] ~= '' and call('HEXISTS', FACTS, 'v' .. id) == 0 then call('ZADD', IDS, format('%.0f', now + ARGV[i + 3]), '\2' .. id) end
  elseif call('HEXISTS', HIST, id) == 0 then
    if run then
      S = S or space()
      settled(id, run)
      final(S, id, run, ARGV[i + 2], HEARD)
    else
      local tick = ARGV[i + 3]
      run = fresh(string.match(id, '^[^@#]*'), '', tick == '' and 'enqueue' or 'schedule', tick)
      run[R_STATE], run[R_REASON], run[R_FINISHED] = ARGV[i + 2], HEARD, ms
      archive(id, run, '', 'null')
      -- Redis has lost the end of this run, and with it that it was counted.
      if tick ~= '' and (run[R_STATE] == 'skipped' or run[R_STATE] == 'missed') then
        addTotal(1, 't', run[R_STATE], run[R_JOB])
      else
        totalRun(run)
      end
      if tick ~= '' then announce(id, ARGV[i + 2]) end
    end
  end
end
if ARGV[1] ~= '' then trim(tonumber(ARGV[1]), tonumber(ARGV[2])) end
return {'ok'}
