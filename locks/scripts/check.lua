-- check does nothing but what the guard does.
-- ARGV: none
-- Replies: ok
return {'ok'}
