-- The fast path of release: an exclusive bundle while no request waits for any of its names. Its
-- first write also checks the hold.
if ARGV[2] and noneIn(awaited(ARGV, 3, #ARGV), ARGV, 3, #ARGV) and giveBack(ARGV, 3, ARGV[2]) then return 'released' end
