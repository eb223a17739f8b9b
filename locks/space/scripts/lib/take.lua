-- Take: how every fast path finds what is free and occupies it.

-- awaited returns the names from list[first] to list[last] that have waits in their queues, as a
-- set that may contain other names, too. It returns nil if the space has no wait in a queue. The
-- fast paths call it. It reads one queue per name. For many names it first goes from queue to
-- queue, since usually few names have waits. "Many callers" in doc.go explains why no other wait
-- matters.
local function awaited(list, first, last)
  local call, Q = redis.call, KEYS[5]
  if call('ZCARD', Q) == 0 then return nil end
  local found, from = {}, '-'
  for _ = 1, last - first > 8 and 8 or 0 do
    local member = call('ZRANGEBYLEX', Q, from, '+', 'LIMIT', '0', '1')[1]
    if not member then return found end
    local name = string.match(member, '^[^%z]*')
    found[name], from = true, '(' .. name .. '\1'
  end
  for i = first, last do
    local name = list[i]
    if call('ZLEXCOUNT', Q, '[' .. name .. '\0', '(' .. name .. '\1') > 0 then found[name] = true end
  end
  return found
end

-- occupied returns the names from list[first] to list[last] that are held, reserved or waited for,
-- as a set that may contain other names, too.
local function occupied(list, first, last)
  local set, owners = awaited(list, first, last) or {}, call('HMGET', OWN, unpack(list, first, last))
  for i = first, last do
    if owners[i - first + 1] then set[list[i]] = true end
  end
  return set
end
