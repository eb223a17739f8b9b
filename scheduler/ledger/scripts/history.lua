-- history reads the records of finished runs of one job.
-- ARGV: 1 bytes of arguments at most  2... runs
-- Replies: per run, until the reply is long enough: final record with attempts and arguments; ''
--   for arguments that are longer, and for everything of a run that is not in the history
-- BYTES bounds how long a call keeps Redis busy. A pattern would look at each byte of a record.
local BYTES = 512 * 1024
local out, bytes = {}, 0
for i = 2, #ARGV do
  local text = call('HGET', HIST, ARGV[i]) or ''
  bytes = bytes + #text
  local log = string.find(text, '\29', 1, true)
  local args = log and string.find(text, '\29', log + 1, true)
  if args and #text - args > tonumber(ARGV[1]) then text = sub(text, 1, args) end
  out[#out + 1] = text
  if bytes >= BYTES then break end
end
return out
