-- greet makes the space check which server it is on, before a new connection is used for anything
-- else.
-- ARGV: 1 and 2 the length of a grace period: ms at least, ms more than the longest lease
-- Replies:
--   empty: the space does not exist, and the script does not create it
--   known
--   changed: a grace period has begun
--   hidden, error of INFO: the server hides its identity, although the space knows one
return {notice(ARGV[1], ARGV[2])}
