-- The fast path of release: an exclusive bundle while no request waits for any of its names. Its
-- first write also checks the hold.
local queues, first
if ARGV[2] then queues, first = awaited(ARGV, 3, #ARGV) end
local passes = ARGV[2] and (not queues or noneIn(queues, ARGV, 3, #ARGV))
if passes and giveBack(ms, ARGV, 3, ARGV[2]) then return 'released' end
