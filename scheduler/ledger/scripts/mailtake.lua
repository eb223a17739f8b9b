-- mailtake takes messages that may be sent now: for each target and job, those that wait together,
-- in one batch. No other worker takes them until the lease ends; then it gets the same batch.
-- ARGV: 1 how many of the targets and jobs that are due to pass over, see the reply  2 lease, ms
--       3 ms after which a message that could not be sent is abandoned  4 messages of a batch, at
--       most  5... targets that the caller can send to
-- Replies: ms, what to pass over in the next call, 0 after the last; then for each batch: send, or
--   expired: no worker has been able to send to that target; target, job, number of its last
--   message, requests that have failed, how many messages for the target were not stored and are
--   not in the audit yet (the same in each batch of the target), the messages
-- LOOK, MOST and BYTES bound how long a call keeps Redis busy.
local LOOK, MOST, BYTES = 100, 20, 256 * 1024
local mine, batches, bytes, passed = {}, {}, 0, 0
for i = 5, #ARGV do mine[ARGV[i]] = true end

-- aged reports whether a message has waited for too long.
local function aged(member)
  local at = tonumber(string.match(string.match(member, '^[^%z]*%z[^%z]*%z%d*%z(.*)$') or '', M_MATCH[[ID EVENT (AT)]]) or '')
  return now - (at or 0) >= tonumber(ARGV[3])
end

-- silent returns how many messages for a target the audit does not have yet. An earlier build
-- subtracted some of them once for each batch that brought them along.
local function silent(target)
  local n = tonumber(call('HGET', MAILED, 'silent:' .. target) or '') or 0
  if n < 0 then call('HDEL', MAILED, 'silent:' .. target) end
  return math.max(0, n)
end

local due = call('ZRANGEBYSCORE', POST, '-inf', ms, 'LIMIT', ARGV[1], LOOK)
for i = 1, #due do
  local group, target, job = due[i], string.match(due[i], '^([^%z]*)%z(.*)$')
  local known = mine[target]
  local from, upto = '[' .. group .. '\0', '(' .. group .. '\1'
  local members = call('ZRANGEBYLEX', MAIL, from, upto, 'LIMIT', '0', known and ARGV[4] or 1)
  if #members == 0 then
    call('ZREM', POST, group)
  else
    local expired = not known and aged(members[1])
    if expired then members = call('ZRANGEBYLEX', MAIL, from, upto, 'LIMIT', '0', ARGV[4]) end
    local noted, tries = string.match(call('HGET', MAILED, 'batch:' .. group) or P_TEXT{UPTO = ''; TRIES = '0'}, P_MATCH[[(UPTO) (TRIES)]])
    local messages, last = {}, noted
    for k = 1, #members do
      local number, message = string.match(sub(members[k], #group + 2), '^(%d+)%z(.*)$')
      if not number then -- another client wrote it
        call('ZREM', MAIL, members[k])
      else
        if noted == '' and (known or expired and aged(members[k])) then last = number end
        if number <= last then messages[#messages + 1] = message end
      end
    end
    if #messages == 0 and (known or expired) then -- another client has removed those of the batch
      call('HDEL', MAILED, 'batch:' .. group)
    elseif known or expired then
      call('HSET', MAILED, 'batch:' .. group, P_TEXT{UPTO = last; TRIES = tries})
      call('ZADD', POST, format('%.0f', now + ARGV[2]), group)
      local n = #batches
      batches[n + 1], batches[n + 2], batches[n + 3], batches[n + 4] = known and 'send' or 'expired', target, job, last
      batches[n + 5], batches[n + 6], batches[n + 7] = tries, silent(target), messages
      for k = 1, #messages do bytes = bytes + #messages[k] end
    else
      passed = passed + 1
    end
  end
  if #batches >= 7 * MOST or bytes > BYTES then
    due[LOOK] = due[LOOK] or '' -- there may be more
    break
  end
end
table.insert(batches, 1, due[LOOK] and ARGV[1] + passed or 0)
table.insert(batches, 1, ms)
return batches
