-- Children: the runs that were made from within other runs.

-- childrenOf notes that the runs in ids, at least one, were made from another one, and returns the
-- other, or '' if that is neither outstanding nor in this history. CHILDREN: the key. It comes
-- before all other writes of a script, and reads before it writes: a key of the wrong type changes
-- nothing.
local function childrenOf(parent, ids, history, CHILDREN)
  local record = call('HGET', RUN, parent) or call('HGET', history, parent)
  if not record then return '' end
  local made = string.match(record, R_MATCH[[STATE N JOB QUEUE TRIGGER TICK (CREATED)]]) or ''
  local known = call('HGET', CHILDREN, parent)
  local since, n, first = string.match(known or '', '^([^\31]*)\31(%d+)(.*)$')
  if not known then
    local last = call('HINCRBY', CHILDREN, '#', 1)
    local old = '#' .. format('%.0f', last - 10000)
    local gone = call('HGET', CHILDREN, old)
    if gone then call('HDEL', CHILDREN, old, gone) end
    call('HSET', CHILDREN, '#' .. format('%.0f', last), parent)
  end
  if since ~= made then n, first = 0, '' end -- an earlier run had the same id
  for i = 1, math.min(#ids, 20 - n) do first = first .. US .. ids[i] end
  call('HSET', CHILDREN, parent, made .. US .. format('%.0f', n + #ids) .. first)
  return parent
end

-- childOf is childrenOf for one run of the same job. entry: as audit takes it.
local function childOf(parent, id, entry)
  if parent == '' then return '' end
  return childrenOf(parent, {id}, HIST, KEYS[#KEYS - (entry == '' and 0 or 1)])
end
