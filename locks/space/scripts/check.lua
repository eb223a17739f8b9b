-- check only runs the guard.
-- ARGV: none
-- Replies: ok
return {'ok'}
