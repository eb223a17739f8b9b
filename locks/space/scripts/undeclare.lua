-- undeclare removes a declared number of permits, so that the resource has all other modes again.
-- ARGV: 1 name  2 the version that the caller saw
-- Replies:
--   ok
--   none: no permits are declared
--   newer, permits, version: a higher version is declared
--   used, n, waits: n permits are in use, and that many requests wait for some
-- Nothing waits for the name when it is removed, so there is nothing to grant.
local name = ARGV[1]
local owner = call('HGET', OWN, name)
if not owner or sub(owner, 1, 1) ~= 'p' then return {'none'} end
local used, most, version = permits(owner)
if tonumber(version) > tonumber(ARGV[2]) then return {'newer', most, version} end
local waits = call('ZLEXCOUNT', Q, '[' .. name .. '\0', '(' .. name .. '\1')
if used > 0 or waits > 0 then return {'used', used, waits} end
call('HDEL', OWN, name)
return {'ok'}
