-- definition reads the definitions that outstanding runs were made with.
-- ARGV: runs
-- Replies: per run, until the reply is long enough: its definition (JSON), @ if that is missing, ''
-- if the run is not outstanding.
-- BYTES bounds how long a call keeps Redis busy. Arguments count a quarter: the script reads them
-- with the definition, and does not reply with them.
local BYTES = 256 * 1024
local out, bytes = {}, 0
for i = 1, #ARGV do
  local body = call('HGET', BODY, ARGV[i])
  if body then
    local _, definition, byname = apart(body)
    local text = resolve(definition, byname)
    out[i], bytes = text ~= '' and text or '@', bytes + #body / 4 + #text
  else
    out[i] = ''
  end
  if bytes >= BYTES then break end
end
return out
