-- The fast path of release: an exclusive bundle while nobody waits anywhere. Its first write is the check, too.
if ARGV[3] and call('ZCARD', Q) == 0 then
  local from = ARGV[2] .. '\0' .. ARGV[1]
  if call('ZREMRANGEBYLEX', HOLD, '[' .. from .. '\31', '(' .. from .. '\32') == 1 then
    call('HDEL', OWN, unpack(ARGV, 3))
    return 'released'
  end
end
