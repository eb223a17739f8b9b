-- The fast path of release: an exclusive bundle while no request waits for any of its names. Its
-- first write also checks the hold.
local fast = ARGV[2] ~= nil
local queues = fast and awaited(ARGV, 3, #ARGV)
for i = 3, queues and #ARGV or 0 do fast = fast and not queues[ARGV[i]] end
if fast and call('ZREM', HOLD, ARGV[2]) == 1 then
  call('HDEL', OWN, unpack(ARGV, 3))
  return 'released'
end
