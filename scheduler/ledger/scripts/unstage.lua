-- unstage drops a staged list of which nothing is recorded.
-- KEYS: as those of stage
-- ARGV: 1 name of the list
-- Replies: 1, or 0: a part of it is recorded, or all
local LISTS, list = KEYS[#KEYS], ARGV[1]
if not isNext(LISTS, list, '0') then return {0} end
return {call('HDEL', LISTS, list)}
