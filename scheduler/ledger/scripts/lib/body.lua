-- Bodies: the arguments and the definition of a run.

-- checkBodies raises the error of keys that embody writes and that have the wrong type, before any
-- write; and an error if the number of bodies that name this definition (as embody takes it) is not
-- a number. The end of a run does without it: disembody tolerates definitions that it cannot count.
local function checkBodies(definition)
  call('HLEN', BODY)
  call('HLEN', DEFS)
  if tonumber(WRITTEN or '1') < 2 then return end
  local field = '#' .. string.match(definition, '^[^\31]*')
  local n = call('HGET', DEFS, field)
  if n and n ~= '0' and (#n > 18 or not string.find(n, '^%-?[1-9]%d*$')) then
    error('field ' .. field .. ' of ' .. DEFS .. ' is not a number, remove it: ' .. sub(n, 1, 100))
  end
end

-- apart returns the arguments and the definition in a body, and whether the latter is a name. A
-- pattern would look at each byte.
local function apart(body)
  local at = string.find(body, US, 1, true) or #body + 1
  return sub(body, 1, at - 1), sub(body, at + 1), string.byte(body, at + 1) == 64
end

-- resolve returns the definition (JSON) of a run: '' if it has none, or if the one that its body
-- names is missing.
local function resolve(definition, byname)
  if byname then return call('HGET', DEFS, definition) or '' end
  return definition
end

-- unmarked returns the arguments of a body without the blank at their end, and whether they had it:
-- that of a definition with targets of messages.
local function unmarked(args)
  if string.byte(args, -1) == 32 then return sub(args, 1, -2), true end
  return args, false
end

-- dropMade removes definitions from those that the history of the job keeps, and the texts of those
-- that no body names.
local function dropMade(names)
  for i = 1, #names do
    redis.pcall('ZREM', MADE, names[i])
    local n = call('HGET', DEFS, '#' .. names[i])
    if not n or (tonumber(n) or 1) <= 0 then call('HDEL', DEFS, '@' .. names[i], '#' .. names[i]) end
  end
end

-- tidyMade drops the definitions that no finished run of the job can have: their last use precedes
-- the end of the oldest one. A definition that a body names is in use now.
local function tidyMade()
  local first = redis.pcall('ZRANGE', DONE, '0', '0', 'WITHSCORES')
  if first.err then return end
  local old, gone = redis.pcall('ZRANGEBYSCORE', MADE, '-inf', first[2] and '(' .. first[2] or '+inf'), {}
  for i = 1, #old do
    if (tonumber(call('HGET', DEFS, '#' .. old[i]) or '') or 0) > 0 then
      call('ZADD', MADE, ms, old[i])
    else
      gone[#gone + 1] = old[i]
    end
  end
  dropMade(gone)
end

-- keepMade adds a definition, after its text was stored, to those that the history of the job
-- keeps: the last used ones, 100 of them, and 1 MiB of texts.
local function keepMade(name, size)
  if type(redis.pcall('ZADD', MADE, ms, name)) ~= 'number' then return end
  tidyMade()
  local names, kept, bytes, gone = call('ZREVRANGE', MADE, '0', '-1'), 1, size, {}
  for i = 1, #names do
    if names[i] ~= name then
      kept, bytes = kept + 1, bytes + call('HSTRLEN', DEFS, '@' .. names[i])
      if kept > 100 or bytes > 1048576 then gone[#gone + 1] = names[i] end
    end
  end
  dropMade(gone)
end

-- usedMade notes the last use of a definition, when its last body is removed, and returns whether
-- the history of the job keeps it.
local function usedMade(name)
  return redis.pcall('ZADD', MADE, 'XX', 'CH', ms, name) == 1 or type(redis.pcall('ZSCORE', MADE, name)) == 'string'
end

-- disembody removes the body of a run, and its definition if no other body names that and the
-- history of the job does not keep it. It returns the arguments, the name of the definition with an
-- @ in front, or nil if the body had the definition itself, and the definition (JSON), if that has
-- targets of messages and wanted returns true. event: the end is one of EVENTS, which are rare. So
-- the definition is then read without the mark, too: a build from before messages writes none.
local function disembody(id, wanted, event)
  local args, name, byname = apart(call('HGET', BODY, id) or '')
  local marked, definition
  args, marked = unmarked(args)
  if (marked or event) and wanted and wanted() then
    definition = resolve(name, byname)
    if not marked and not string.find(definition, '"notify":', 1, true) then definition = nil end
  end
  call('HDEL', BODY, id)
  if byname then
    -- Another program wrote a value that is not a number; then the text stays.
    local left = redis.pcall('HINCRBY', DEFS, '#' .. sub(name, 2), -1)
    if type(left) == 'number' and left <= 0 then
      if not usedMade(sub(name, 2)) then
        call('HDEL', DEFS, name, '#' .. sub(name, 2))
      elseif left < 0 then -- another program wrote it
        call('HSET', DEFS, '#' .. sub(name, 2), '0')
      end
    end
  end
  return args, byname and name or nil, definition
end

-- embody writes the body of a run. definition: its name and the definition (JSON), joined by \31.
-- It also restores a definition that a foreign write has removed or cut: its length shows that,
-- without a copy of the text.
local function embody(id, args, definition)
  local at = string.find(definition, US, 1, true)
  local name, text = sub(definition, 1, at - 1), sub(definition, at + 1)
  if call('HEXISTS', BODY, id) == 1 then disembody(id) end
  if tonumber(WRITTEN or '1') < 2 then
    call('HSET', BODY, id, args .. US .. text)
  else
    if (call('HINCRBY', DEFS, '#' .. name, 1) == 1 or call('HSTRLEN', DEFS, '@' .. name) ~= #text) and
      call('HSET', DEFS, '@' .. name, text) == 1 then
      keepMade(name, #text)
    end
    call('HSET', BODY, id, args .. US .. '@' .. name)
  end
end

-- markof returns the mark of a definition in a body, which a claim lists if its worker can run it:
-- @ and the name, or the handler and the length of the text.
local function markof(definition, byname)
  if byname then return definition end
  local _, upto = string.find(definition, '"handler":"', 1, true)
  local handler = upto and sub(definition, upto + 1, (string.find(definition, '"', upto + 1, true) or 0) - 1) or ''
  return handler .. ' ' .. #definition
end
