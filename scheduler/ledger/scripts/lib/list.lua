-- Lists of requests.

-- statesIn returns the states of the runs in ids that a key has, by their places in ids; '' where
-- it read none. Some records are long: it reads no more of them once copies have taken their time.
local function statesIn(key, ids)
  local states, bytes = {}, 0
  for from = 1, #ids, 32 do
    local upto = math.min(from + 31, #ids)
    local found = bytes < 262144 and call('HMGET', key, unpack(ids, from, upto))
    for j = from, upto do
      local record = found and found[j - from + 1] or not found and call('HEXISTS', key, ids[j]) == 1 and ''
      if record then
        bytes = bytes + #record
        states[j] = string.match(record, R_MATCH[[(STATE)]]) or ''
      end
    end
  end
  return states
end

-- progress returns when a list was staged (server ms), and how many of its requests are recorded;
-- or nil for a list that is not staged.
local function progress(LISTS, list)
  return string.match(call('HGET', LISTS, 'n:' .. list) or '', '^(%d+) (%d+)$')
end

-- recorded notes that the first n requests of a staged list are recorded, or, with '', all of them:
-- then the list is no longer staged.
local function recorded(LISTS, list, n)
  if list == '' then return end
  if n == '' then
    call('HDEL', LISTS, 'l:' .. list, 'n:' .. list)
  else
    call('HSET', LISTS, 'n:' .. list, progress(LISTS, list) .. ' ' .. n)
  end
end
