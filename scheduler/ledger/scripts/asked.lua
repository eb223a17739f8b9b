-- asked tells what a worker is asked to stop. A worker that drains reads it in place of poll.
-- ARGV: 1 session
-- Replies: a list of runs and why (no run: all of them)
return {asked(ARGV[1])}
