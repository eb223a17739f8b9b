-- News: messages to the workers, and the audit of acts.

-- announce tells every worker that a run became outstanding (state '') or how it ended, so that
-- they know it should Redis lose its data.
local function announce(id, state) call('XADD', NEWS, 'MAXLEN', '~', '10000', '*', 'r', id, 's', state) end

-- lags reports whether Redis may lack what a worker knows that has read the news up to a position:
-- the last one of these is missing, or the worker has yet to re-assert what was lost. Until then it
-- must not forget anything because Redis lacks it. whole: the last generation of the space in which
-- it has re-asserted everything, or "".
local function lags(position, whole)
  local present = generation()
  return not present or reasserting() and whole ~= present or
    position ~= '0-0' and #call('XREVRANGE', NEWS, '+', position, 'COUNT', '1') == 0
end

-- asked lists what a worker is asked to stop: runs and reasons; no run: all of them, it must drain.
-- The reason is "" where the records before it are long, so that reading them does not keep Redis
-- busy; it is in the record when the run ends.
local function asked(session)
  local list, bytes = {}, 0
  local members = call('ZRANGEBYLEX', ASK, '[' .. session .. '\0', '(' .. session .. '\1', 'LIMIT', 0, 1000)
  for i = 1, #members do
    local id, reason = sub(members[i], #session + 2), nil
    if id ~= '' then bytes = bytes + call('HSTRLEN', RUN, id) end
    if id ~= '' and bytes < 256 * 1024 then
      reason = string.match(call('HGET', RUN, id) or '', R_MATCH[[* (STOP)]])
    end
    list[2 * i - 1], list[2 * i] = id, reason or ''
  end
  return list
end

-- audit records an act, for 90 days and the last 50,000 entries; entry '' for none. Repeats are one
-- entry, that of the last of them, so that no number of them pushes other entries out. Entry:
-- actor, act and object (a digest), how many times, how long after the first its repeats join it
-- (ms), JSON; joined by \31.
local function audit(entry)
  if entry == '' then return end
  local key, times, window, act = string.match(entry, '^([^\31]*)\31([^\31]*)\31([^\31]*)\31(.*)$')
  local ACTS, first = KEYS[#KEYS], ms
  local last = call('HGET', ACTS, key)
  if last then
    local id, n, since = string.match(last, '^([^\31]*)\31([^\31]*)\31([^\31]*)$')
    if now - since < tonumber(window) then
      call('XDEL', AUDIT, id)
      times, first = format('%.0f', times + n), since
    end
  elseif call('HLEN', ACTS) >= 1000 then
    call('DEL', ACTS) -- the next repeat of each begins an entry
  end
  local id = call('XADD', AUDIT, 'MAXLEN', '~', '50000', '*', 'e', act, 'n', times, 'f', first)
  call('HSET', ACTS, key, id .. US .. times .. US .. first)
  call('XTRIM', AUDIT, 'MINID', format('%.0f', math.max(0, now - 90 * 86400000)))
end
