-- carried lists the configs that are carried.
-- ARGV: 1 ms after which a definition that no worker carries gives way
-- Replies: their digests
local out, all = {}, call('HGETALL', LEDGER)
for i = 1, #all, 2 do
  local digest = string.match(all[i], '^config:(.*)$')
  if digest and tonumber(all[i + 1]) >= now - ARGV[1] then out[#out + 1] = digest end
end
return out
