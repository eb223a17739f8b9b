-- The fast path of acquire: an exclusive bundle while nothing is due and no request waits for any
-- of its names. It runs before the functions of the long path are created, since that takes as long
-- as its commands do. Its reply is one string, the fields joined by \31.
local fast = ARGV[6] ~= nil
local queues = fast and awaited(ARGV, 6, #ARGV)
for i = 6, queues and #ARGV or 0 do fast = fast and not queues[ARGV[i]] end
if fast then
  local clock = call('TIME')
  local token = clock[1] .. sub('00000' .. clock[2], -6)
  local ms = sub(token, 1, -4)
  if call('ZCOUNT', EXP, '-inf', ms) == 0 and call('HEXISTS', META, 'card:' .. ARGV[1]) == 1 then
    local value, free = 'x' .. ARGV[2], true
    if ARGV[7] then
      local owners = call('HMGET', OWN, unpack(ARGV, 6))
      for i = 1, #owners do free = free and not owners[i] end
      if free then
        local slots = {}
        for i = 6, #ARGV do slots[2 * i - 11], slots[2 * i - 10] = ARGV[i], value end
        call('HSET', OWN, unpack(slots))
      end
    else
      free = call('HSETNX', OWN, ARGV[6], value) == 1
    end
    if free then
      local last = call('SET', SEQ, token, 'GET')
      if last and tonumber(last) >= tonumber(token) then
        token = format('%.0f', last + 1)
        call('SET', SEQ, token)
      end
      local grant = token .. '\31' .. ms
      call('ZADD', HOLD, '0', H_TEXT{SESSION = ARGV[1] .. '\0' .. ARGV[2]; TOKEN_SINCE = grant; INFO = ARGV[4]; ITEMS = ARGV[5]})
      return 'granted\31' .. grant
    end
  end
end
