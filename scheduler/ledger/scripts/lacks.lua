-- lacks finds the ends of runs of one job that a worker must re-assert, since Redis knows less.
-- ARGV: 1 history: runs, or ""  then three for each run: its id; the token of this worker's last
--       attempt at it, "" if the worker has only heard how the run ended; how long ago, ms
-- Replies: the places of those runs in the list, from 0
-- An end that is older than all of a full history is not asserted: it would take the place of a
-- younger one. But a run that is outstanding must have its end, however old. If an attempt's end
-- and its claim were lost, it began after all that was kept. One hears of an end a second later.
local HEARING = 2000 -- ms at most, between an end and the report of it
local lacks, keep, oldest = {}, tonumber(ARGV[1]), nil
if keep and keep > 0 and call('ZCARD', DONE) >= keep then oldest = tonumber(call('ZRANGE', DONE, 0, 0, 'WITHSCORES')[2]) end

local function known(id, token, ago)
  if not token and call('HEXISTS', HIST, id) == 1 or token and outdone(id, token) then return true end
  local run = load(id)
  if not run then return oldest and (token and math.floor(token / 1000) or now - ago - HEARING) <= oldest end
  local last = tonumber(run[R_TOKEN])
  return token and (last > token or last == token and run[R_STATE] ~= 'running')
end

for i = 2, #ARGV, 3 do
  if not known(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]) then lacks[#lacks + 1] = (i - 2) / 3 end
end
return lacks
