-- The fast path of enqueue: a run that is due at once, under an unknown id and made from no other
-- run, while its definition is stored and no id must be forgotten. It precedes the functions of the
-- general path, since Redis creates them anew at each call and that takes as long as the commands
-- do. enqueue.lua does the same, with fresh and due of the library; a test runs both on random
-- ledgers and compares all keys. The other fast paths need a live session, so they never meet a
-- format that this build does not know (see package locks); a request comes from any client, so
-- this one checks the format.
do
  local job, id = ARGV[1], ARGV[2]
  if newestFormat() and ARGV[6] == '0' and tonumber(ARGV[5]) <= now and ARGV[13] == '' and ARGV[14] == '' and
    call('HEXISTS', RUN, id) == 0 and call('HEXISTS', BODY, id) == 0 and
    call('HEXISTS', HIST, id) == 0 and not call('ZSCORE', IDS, id) and (ARGV[7] == '0' or call('ZCOUNT', IDS, '-inf', ms) == 0) then
    local at = string.find(ARGV[9], '\31', 1, true)
    local name = sub(ARGV[9], 1, at - 1)
    if call('HSTRLEN', DEFS, '@' .. name) == #ARGV[9] - at then
      -- The first write is the one that fails when definitions cannot be counted.
      call('HINCRBY', DEFS, '#' .. name, 1)
      if ARGV[7] ~= '0' then call('ZADD', IDS, format('%.0f', now + ARGV[7]), id) end
      call('HSET', BODY, id, ARGV[8] .. '\31@' .. name)
      call('ZADD', OPEN, '0', job .. '\0' .. '0000000000000000' .. '\0' .. id)
      call('ZADD', READY, '0', ARGV[3] .. '\0' .. format('%016.0f', now) .. '\0' .. id)
      call('ZADD', PUSH, ms, id)
      call('HSET', RUN, id, R_TEXT{STATE = 'due'; N = '1'; JOB = job; QUEUE = ARGV[3]; TRIGGER = ARGV[4]; CREATED = ms; SINCE = ms;
        BY = ARGV[15]; PATIENCE = ARGV[10]; ONBUSY = ARGV[11]; LIMITS = ARGV[12]; ITEMS = concat(ARGV, '\31', 16)})
      return {'created', '1', 'due'}
    end
  end
end
