-- past reads a page of what has ended, in the order of the ends.
-- ARGV: 1 the number of the element after the last one of the page; '' for all there are
--       2 limit
-- Reply: the number of the first element of the page, then its elements. Numbers count the elements
--   that the space has ever had.
local gone, n = tonumber(call('HGET', META, 'endings_gone') or '0'), call('LLEN', ENDINGS)
local upto = math.min(n, (tonumber(ARGV[1]) or gone + n) - gone)
local from = math.max(0, upto - ARGV[2])
return {format('%.0f', gone + from), unpack(upto > 0 and call('LRANGE', ENDINGS, from, upto - 1) or {})}
