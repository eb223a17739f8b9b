-- history reads one page of a job's finished runs, the last first.
-- ARGV: 1 rank to start from  2 limit  3 bytes of arguments at most
-- Replies: 1 when the page ended before its limit and more follow, else 0; then per run: id, final record with attempts and
-- arguments; '' for arguments that are longer
-- BYTES bounds how long a page keeps Redis busy.
local BYTES = 512 * 1024
local out, bytes = {0}, 0
local ids = call('ZREVRANGE', DONE, ARGV[1], ARGV[1] + ARGV[2] - 1)
for i = 1, #ids do
  local text = call('HGET', HIST, ids[i]) or ''
  bytes = bytes + #text
  local log = string.find(text, '\29', 1, true)
  local args = log and string.find(text, '\29', log + 1, true)
  if args and #text - args > tonumber(ARGV[3]) then text = sub(text, 1, args) end
  out[#out + 1] = ids[i]
  out[#out + 1] = text
  if bytes >= BYTES and i < #ids then
    out[1] = 1
    break
  end
end
return out
