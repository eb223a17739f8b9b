-- The fast path of acquire: an exclusive bundle while nothing is due and no request waits for any
-- of its names. It runs before the functions of the long path are created, since that takes as long
-- as its commands do. Its reply is one string, the fields joined by \31.
local queues = ARGV[6] and awaited(ARGV, 6, #ARGV)
local passes = ARGV[6] and (not queues or noneIn(queues, ARGV, 6, #ARGV))
if passes and live(ARGV[1], ms) and takeFree(ARGV, 6, 'x' .. ARGV[2]) then
  local issued = draw(micros, 1, ARGV, 6) .. '\31' .. ms
  call('ZADD', HOLD, '0', H_TEXT{SESSION = ARGV[1] .. '\0' .. ARGV[2]; TOKEN_SINCE = issued; INFO = ARGV[4]; ITEMS = ARGV[5]})
  return 'granted\31' .. issued
end
