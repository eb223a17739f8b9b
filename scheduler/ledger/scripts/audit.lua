-- audit records an act that no other script of the ledger does.
-- ARGV: 1 entry
-- Replies: ok
audit(ARGV[1])
return {'ok'}
