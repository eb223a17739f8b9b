-- waiting lists runs that wait for their locks in a queue, those that wait for longest first.
-- ARGV: 1 queue  2 place to continue from, '' to begin  3 runs at most
-- Replies: the place to continue from, '' after the last run; then the runs
local ids, after = space().among(ARGV[1], ARGV[2], ARGV[3])
for i = 1, #ids do ids[i] = sub(ids[i], 2) end
table.insert(ids, 1, after)
return ids
