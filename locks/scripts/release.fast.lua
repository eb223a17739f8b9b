-- The fast path of release: an exclusive bundle while nobody waits anywhere. Its first write is the check, too.
if ARGV[2] and call('ZCARD', Q) == 0 and call('ZREM', HOLD, ARGV[2]) == 1 then
  call('HDEL', OWN, unpack(ARGV, 3))
  return 'released'
end
