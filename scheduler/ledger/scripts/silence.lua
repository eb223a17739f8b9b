-- silence stores messages about jobs that have had no success for too long: one for each target and
-- silence.
-- ARGV: four for each job: job, hash of its definition, ms for which it may be silent, its targets
--       (a definition, JSON)
-- Replies: for each job, in how many ms it must be looked at again
-- A job is not looked at by a definition that is not active. Once a silence has a message, the next
-- one begins with a success, so it lasts at least that long.
local AGAIN = 60000 -- ms until a job is looked at again whose definition is not active
local out = {}
for i = 1, #ARGV, 4 do
  local job, most = ARGV[i], tonumber(ARGV[i + 2])
  local facts = call('HMGET', FACTS, 'g' .. job, 'v' .. job, 'n' .. job)
  local silent, at, left = facts[1], string.match(facts[1] or '', '^%a(%d+)$'), AGAIN
  if at and versionsOf(facts[2]) == ARGV[i + 1] then
    left = at + most - now
    if left < 0 then -- as the views have it: longer than max_silence
      left = most
      if string.match(facts[3] or '', '^[^\30]*') ~= silent then
        tell(job, ARGV[i + 3], 'late', {M_TEXT{ID = job .. '.late.' .. at; EVENT = 'late'; AT = ms; STARTED = at; REASON = sub(silent, 1, 1)}}, silent)
      end
    end
  end
  out[#out + 1] = format('%.0f', left + 1)
end
return out
