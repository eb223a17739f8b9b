-- greet has the space notice which server it is on, before a new connection is used for anything else.
-- ARGV: 1 and 2 how long a grace time is: ms at least, ms more than the longest lease
-- Replies: empty: there is no space, and there is none after it either | known | changed: a grace time has begun
--   hidden, error of INFO: nothing shows which server this is, although the space knows one
return {notice(ARGV[1], ARGV[2])}
