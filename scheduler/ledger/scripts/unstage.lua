-- unstage drops a staged list of which nothing is recorded.
-- KEYS: those of the ledger, then lists
-- ARGV: 1 name of the list
-- Replies: dropped | recorded: a part of it is | gone: it is not staged
local LISTS, list = KEYS[#KEYS], ARGV[1]
local _, n = progress(LISTS, list)
if n ~= '0' then return {n and 'recorded' or 'gone'} end
recorded(LISTS, list, '')
return {'dropped'}
