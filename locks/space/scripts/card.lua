-- card replaces what a session publishes about itself.
-- ARGV: 1 session  2 card
-- Replies: ok | dead
if not ends(ARGV[1]) then return {'dead'} end
call('HSET', META, 'card:' .. ARGV[1], ARGV[2])
return {'ok'}
