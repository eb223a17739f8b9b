-- drain asks a worker to take nothing new, and to end when its running attempts have.
-- ARGV: 1 session  2 entry for the audit
-- Replies: asked | already | none: it has ended
if not ends(ARGV[1]) then return {'none'} end
if call('ZADD', ASK, '0', ARGV[1] .. '\0') == 0 then return {'already'} end
audit(ARGV[2])
return {'asked'}
