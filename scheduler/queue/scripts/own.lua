-- own: register queues for a namespace, all or none.
--
-- KEYS[1]  HASH queue -> namespace, shared by all namespaces of this Redis
-- ARGV[1]  namespace
-- ARGV[2...]  queue names
--
-- Reply: the queues that belong to another namespace, as queue, namespace, queue, namespace, ...;
-- empty if all queues are ours.
-- Invariant: an entry is never overwritten, and a refusal changes nothing.
local taken = {}
for i = 2, #ARGV do
  local owner = redis.call('HGET', KEYS[1], ARGV[i])
  if owner and owner ~= ARGV[1] then
    taken[#taken + 1] = ARGV[i]
    taken[#taken + 1] = owner
  end
end
if #taken == 0 then
  for i = 2, #ARGV do
    redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[1])
  end
end
return taken
