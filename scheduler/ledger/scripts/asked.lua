-- asked lists what a worker is asked to stop. A draining worker reads it instead of poll.
-- ARGV: 1 session
-- Replies: a list of runs and reasons (no run: all of them)
return {asked(ARGV[1])}
