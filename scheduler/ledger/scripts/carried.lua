-- carried lists the configs that are carried. It also counts those that were left: a config may
-- come and leave between two calls.
-- ARGV: 1 ms after which a definition that no worker carries gives way
-- Replies: # and how many configs were left so far, then the digests
local out, all = {'#' .. (call('HGET', LEDGER, 'leaves') or '0')}, call('HGETALL', LEDGER)
for i = 1, #all, 2 do
  local digest = string.match(all[i], '^config:(.*)$')
  if digest and tonumber(all[i + 1]) >= now - ARGV[1] then out[#out + 1] = digest end
end
return out
