-- Entries for holds and waits that have ended: see StoredEntry in layout.go. A space keeps them if
-- it has the key past, which retain creates and removes. An entry never makes a script fail.
--
-- Like the functions of take.lua, keepEnd and trimPast mostly use globals and their arguments.

-- trimPast removes what is older than the space keeps it, or more than it keeps: whole nodes of the
-- stream. at: server ms, as text.
local function trimPast(at)
  local age, most = string.match(redis.call('HGET', KEYS[7], 'keep') or '', '^(%d+) (%d+)$')
  if not most then return end
  redis.pcall('XTRIM', KEYS[9], 'MAXLEN', '~', most)
  redis.pcall('XTRIM', KEYS[9], 'MINID', '~', string.format('%.0f-0', at - age))
end

-- keepEnd appends the entry of a hold or a wait that has ended. how: its first field. record: the
-- others, after something and \0, so that a member of the key hold as it was granted can be the
-- record of its end. The scheduler's runs name themselves in their info and in their bundle: the
-- entry has the run once, after # in place of the info.
local function keepEnd(how, record)
  local find, sub, past = string.find, string.sub, KEYS[9]
  local from = find(record, '\0', 1, true) + 1
  local at, entry = find(record, '\31{"job":"', from, true), nil
  if at then
    local _, run, after = string.match(record, '^{"job":"([^"]*)","run":"(%1[#@][^"]*)"}()', at + 1)
    local own, last = find(record, '\31xrun:' .. (run or '\0'), after or at, true)
    if own and (last == #record or find(record, '\31', last + 1, true) == last + 1) then
      entry = how .. '\31' .. sub(record, from, at) .. '#' .. run .. sub(record, after, own - 1) .. sub(record, last + 1)
    end
  end
  entry = entry or how .. '\31' .. sub(record, from)
  local id = redis.pcall('XADD', past, 'NOMKSTREAM', '*', 'e', #entry > 116 and sub(entry, 1, 110) or entry)
  if type(id) ~= 'string' then return end
  if #entry > 116 then
    for i = 111, #entry, 110 do redis.pcall('XADD', past, 'NOMKSTREAM', '*', 'm', sub(entry, i, i + 109)) end
  end
  -- Reading the bounds takes longer than the rest, so about one entry in a hundred does it: the
  -- first one in a millisecond that ends with 00.
  if find(id, '00-0', #id - 3, true) then trimPast(sub(id, 1, -3)) end
end

-- retain sets how much the space keeps: ms and a number of entries, joined by a blank; 0 0 for
-- nothing. Bounds that are set already remain, unless these are new.
local function retain(bounds, new)
  local known = call('HGET', META, 'keep')
  if not known or new and known ~= bounds then
    call('HSET', META, 'keep', bounds)
    known = bounds
  end
  local exists = call('EXISTS', PAST) == 1
  if known == '0 0' then
    if exists then call('DEL', PAST) end
  elseif exists then
    trimPast(ms)
  else
    redis.pcall('XADD', PAST, '*', 'b', '')
  end
end
