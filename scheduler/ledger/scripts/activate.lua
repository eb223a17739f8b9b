-- activate makes definitions active that have other triggers from those of the active ones. The old
-- definition of each job has decided its ticks up to a cursor.
-- ARGV: six for each job: job, cursor seen (ms), new cursor (ms), hash of the active definition,
--       hash of the one that becomes active, that definition (JSON)
-- Replies: two for each job, in the order of ARGV:
--   ok, "" | moved, the cursor: another worker has decided ticks since | inactive, "": another
--   definition decides, or the new one is not carried | early, "": the new cursor is in the future
--   | grace, ms left of a grace period, in which nothing is decided
local out, asked, pause = {}, false, nil
for i = 1, #ARGV, 6 do
  local job, seen, upto, before, hash = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local cursor = call('HGET', CURSOR, job)
  local active, versions = known(job)
  local valid = false
  for k = 1, #versions do valid = valid or active == before and versions[k].hash == hash end
  if not asked then asked, pause = true, not quiet() and space().grace() end
  local outcome, detail = 'ok', ''
  if cursor ~= seen then
    outcome, detail = 'moved', cursor or ''
  elseif not valid then
    outcome = 'inactive'
  elseif tonumber(upto) > now then
    outcome = 'early'
  elseif pause then
    outcome, detail = 'grace', format('%.0f', pause)
  else
    call('HSET', CURSOR, job, upto)
    call('ZADD', REV, call('HINCRBY', LEDGER, 'rev', 1), job)
    keep(job, hash, versions)
    call('HSET', DEF, job, ARGV[i + 5])
  end
  local k = #out
  out[k + 1], out[k + 2] = outcome, detail
end
return out
