-- declare sets the number of permits of a resource, once for each version: an older version changes
-- nothing.
-- ARGV: 1 name  2 permits  3 version
-- Replies:
--   ok, permits, version (as declared now), 1 if work is left that another call should do, else 0
--   differs, permits, version: this version was declared with another number
--   mode: a hold has the name in another mode
local name = ARGV[1]
local owner = call('HGET', OWN, name)
if owner and sub(owner, 1, 1) ~= 'p' then return {'mode'} end
-- less: waiting requests may have become impossible to grant.
local used, less = 0, true
if owner then
  local n, most, version = permits(owner)
  local newer = tonumber(ARGV[3]) > tonumber(version)
  if not newer then
    if version == ARGV[3] and format('%d', most) ~= ARGV[2] then return {'differs', most, version} end
    return {'ok', most, version}
  end
  used, less = n, tonumber(ARGV[2]) < most
end
call('HSET', OWN, name, format('p%d:%d:%s', used, ARGV[2], ARGV[3]))
local S = space()
if less then S.untie(name, '') end
S.visit({name})
S.settle()
S.reap()
S.tell()
return {'ok', ARGV[2], ARGV[3], S.more and 1 or 0}
