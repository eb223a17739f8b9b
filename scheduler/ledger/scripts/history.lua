-- history reads one page of a job's finished runs, the last first.
-- ARGV: 1 rank to start from  2 limit
-- Replies: per run: id, final record with attempts and arguments
local out = {}
local ids = call('ZREVRANGE', DONE, ARGV[1], ARGV[1] + ARGV[2] - 1)
for i = 1, #ids do
  out[#out + 1] = ids[i]
  out[#out + 1] = call('HGET', HIST, ids[i]) or ''
end
return out
