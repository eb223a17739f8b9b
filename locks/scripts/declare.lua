-- declare sets how many permits a resource has, once for each version: what an older one says changes nothing.
-- ARGV: 1 name  2 permits  3 version
-- Replies: ok, permits, version: what is declared now; 1 when work is left that another call should do, else 0 | differs, permits, version: this version was declared otherwise
--   mode: somebody holds the name in another way | dead work is left to a reap: ms
local name = ARGV[1]
local owner = call('HGET', OWN, name)
if owner and sub(owner, 1, 1) ~= 'p' then return {'mode'} end
local used, less = 0, true -- less: requests may wait that cannot be granted any more
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
