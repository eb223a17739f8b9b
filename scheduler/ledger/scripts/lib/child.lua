-- Children: the runs that were made from within other runs.

-- childOf notes that the run id was made from another one, and returns the other, or '' if that is
-- neither outstanding nor in the history of the same job. entry: as audit takes it. It comes before
-- all other writes of a script, and reads before it writes: a key of the wrong type changes
-- nothing.
local function childOf(parent, id, entry)
  if parent == '' then return '' end
  local record = call('HGET', RUN, parent) or call('HGET', HIST, parent)
  if not record then return '' end
  local CHILDREN = KEYS[#KEYS - (entry == '' and 0 or 1)]
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
  if n + 0 < 20 then first = first .. US .. id end
  call('HSET', CHILDREN, parent, made .. US .. format('%.0f', n + 1) .. first)
  return parent
end
