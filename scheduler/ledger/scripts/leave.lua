-- leave tells that a session has gone over from one config to another. What nobody else says to carry within a while gives
-- way then, and not as late as after a crash.
-- ARGV: 1 digest of the config that it had  2 ms after which a definition that nobody carries gives way  3 ms for the others
-- Replies: now (ms)
-- Whoever carries the config still polls with it, which undoes this.
local seen = tonumber(call('HGET', LEDGER, 'config:' .. ARGV[1]) or '0')
local most = now - tonumber(ARGV[2]) + tonumber(ARGV[3])
if seen > most then call('HSET', LEDGER, 'config:' .. ARGV[1], string.format('%.0f', most)) end
return {ms}
