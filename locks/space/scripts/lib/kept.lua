-- Entries for holds and waits that have ended: see StoredEntry in layout.go. A space keeps them if
-- it has the key endings, which retain creates and removes. An entry never makes a script fail.
--
-- Like the functions of take.lua, keepEnd and trimEndings mostly use globals and their arguments.

-- trimEndings removes what is older than the space keeps it, or more than it keeps, up to 10,000
-- elements at a time. It leaves the last entry: a list without elements is no key. at: server ms,
-- as text.
local function trimEndings(at)
  local call, endings = redis.call, KEYS[9]
  local age, most = string.match(call('HGET', KEYS[7], 'keep') or '', '^(%d+) (%d+)$')
  local n = most and call('LLEN', endings) or 0
  local gone, step = math.max(n - (most or 0), 0), 100
  -- It looks at every hundredth element, or at fewer while all of them are too old.
  while step >= 100 and gone < 10000 do
    local i, ended = gone + step, nil
    while i > gone and i < n and not ended do
      i, ended = i - 1, string.match(call('LINDEX', endings, i - 1), '^%d+')
    end
    if ended and at - ended > age + 0 then
      gone, step = gone + step, step * 2
    else
      step = step > 100 and 100 or 0
    end
  end
  gone = math.min(gone, n - 1, 10000)
  -- The first element that is left begins an entry: the next one that does, or the last one.
  local function part() return gone > 0 and string.find(call('LINDEX', endings, gone), '^\31') end
  while gone < n - 1 and part() do gone = gone + 1 end
  while part() do gone = gone - 1 end
  if gone < 1 then return end
  call('LTRIM', endings, gone, -1)
  call('HINCRBY', KEYS[7], 'endings_gone', gone)
end

-- keepEnd appends the entries of holds or waits that have ended. at: server ms, as text. how: their
-- first field. Each record has the others, after something and \0, so that a member of the key hold
-- as it was granted can be the record of its end. Without how, that something is the first field.
-- The scheduler's runs name themselves in their info and in their bundle: their entries have the
-- run once, after # in place of the info.
local function keepEnd(at, how, ...)
  local find, sub = string.find, string.sub
  local records, elements, size = {...}, {...}, 0 -- each record has at least one element
  for i = 1, #records do
    local record = records[i]
    local from = find(record, '\0', 1, true) + 1
    local info, entry = find(record, '\31{"job":"', from, true), nil
    if info then
      local _, run, after = string.match(record, '^{"job":"([^"]*)","run":"(%1[#@][^"]*)"}()', info + 1)
      local own, last = find(record, '\31xrun:' .. (run or '\0'), after or info, true)
      if own and (last == #record or find(record, '\31', last + 1, true) == last + 1) then
        entry = sub(record, from, info) .. '#' .. run .. sub(record, after, own - 1) .. sub(record, last + 1)
      end
    end
    entry = at .. '\31' .. (how or sub(record, 1, from - 2)) .. '\31' .. (entry or sub(record, from))
    size = size + 1
    elements[size] = #entry > 140 and sub(entry, 1, 140) or entry
    for j = 141, #entry, 139 do
      size = size + 1
      elements[size] = '\31' .. sub(entry, j, j + 138)
    end
    -- Lua unpacks a few thousand elements at most. An entry is appended whole, or not at all.
    if size > 1000 or i == #records then
      local n = redis.pcall('RPUSHX', KEYS[9], unpack(elements, 1, size))
      -- Reading the bounds takes longer than the rest, so one element in a hundred does it.
      if type(n) == 'number' and n % 100 < size and n > 0 then trimEndings(at) end
      size = 0
    end
  end
end

-- retain sets how much the space keeps: ms and a number of entries, joined by a blank; 0 0 for
-- nothing. Bounds that are set already remain, unless these are new.
local function retain(bounds, new)
  local known = call('HGET', META, 'keep')
  if not known or new and known ~= bounds then
    call('HSET', META, 'keep', bounds)
    known = bounds
  end
  local is = call('TYPE', ENDINGS).ok
  if known == '0 0' then
    call('DEL', ENDINGS)
  elseif is == 'list' then
    trimEndings(ms)
  elseif is == 'none' then
    redis.pcall('RPUSH', ENDINGS, ms)
  end
  -- Sessions of earlier builds keep theirs in a stream: until they end, some are missing here.
  if call('DEL', sub(ENDINGS, 1, -8) .. 'past') == 1 then call('HSET', META, 'endings_since', ms) end
end
