-- activate makes definitions active that have other triggers from those of the active ones. The old
-- definition of each job has decided its ticks up to a cursor.
-- ARGV: six for each job: job, cursor seen (ms), new cursor (ms), hash of the active definition,
--       hash of the one that becomes active, that definition (JSON)
-- Replies: two for each job, in the order of ARGV:
--   ok, "" | moved, the cursor: another worker has decided ticks since | inactive, "": another
--   definition decides, or the new one is not carried | early, "": the new cursor is in the future
--   | grace, ms left of a grace period, in which nothing is decided
-- It reads and writes for all jobs together: a deploy changes very many. No job comes twice.
local out, asked, grace = {}, false, nil
if #ARGV == 0 then return out end
checkJobs()
local names, facts = {}, {}
for i = 1, #ARGV, 6 do
  names[#names + 1], facts[#facts + 1] = ARGV[i], 'v' .. ARGV[i]
end
local cursors, texts = call('HMGET', CURSOR, unpack(names)), call('HMGET', FACTS, unpack(facts))
local moved, kept, definitions = {}, {}, {} -- what is written
for i = 1, #ARGV, 6 do
  local seen, upto, before, hash = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local at = (i + 5) / 6
  local job, cursor = names[at], cursors[at]
  local active, versions = versionsOf(texts[at])
  local listed = false
  for k = 1, #versions do listed = listed or active == before and versions[k].hash == hash end
  if not asked then asked, grace = true, not quiet() and space().grace() end
  local outcome, detail = 'ok', ''
  if cursor ~= seen then
    outcome, detail = 'moved', cursor or ''
  elseif not listed then
    outcome = 'inactive'
  elseif tonumber(upto) > now then
    outcome = 'early'
  elseif grace then
    outcome, detail = 'grace', format('%.0f', grace)
  else
    local k = #moved
    moved[k + 1], moved[k + 2] = job, upto
    kept[k + 1], kept[k + 2] = facts[at], versionsText(hash, versions)
    definitions[k + 1], definitions[k + 2] = job, ARGV[i + 5]
  end
  local k = #out
  out[k + 1], out[k + 2] = outcome, detail
end
if #moved > 0 then
  local revised, rev = {}, call('HINCRBY', LEDGER, 'rev', #moved / 2) - #moved / 2
  for k = 1, #moved, 2 do
    revised[k], revised[k + 1] = rev + (k + 1) / 2, moved[k]
  end
  call('HSET', CURSOR, unpack(moved))
  call('ZADD', REV, unpack(revised))
  call('HSET', FACTS, unpack(kept))
  call('HSET', DEF, unpack(definitions))
end
return out
