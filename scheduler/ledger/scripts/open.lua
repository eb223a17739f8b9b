-- open reads one page of an index of outstanding runs. It reads no records.
-- ARGV: 1 index: open, ready, busy or timer  2 open: job, or "" for all  3 the place after which
--       the page begins, or ""  4 limit
-- Replies: per entry: run, place
-- A place is the index member; of timer, the score and the run, joined by \0. The order: open by
-- job, and of each job the latest tick first; ready by queue, and the run that was due first; busy
-- by session; timer the run that becomes due first.
local index, job, after, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local out = {}

local function add(members)
  for i = 1, #members do
    out[#out + 1] = string.match(members[i], '([^%z]*)$')
    out[#out + 1] = members[i]
  end
end

if index == 'open' then
  local name, from = string.match(after, '^([^%z]*)%z'), '-'
  local to = name and '(' .. after
  if job ~= '' then name = job end
  repeat
    if not name then
      local next = call('ZRANGEBYLEX', OPEN, from, '+', 'LIMIT', 0, 1)
      name = next[1] and string.match(next[1], '^([^%z]*)')
    end
    if not name then break end
    add(call('ZREVRANGEBYLEX', OPEN, to or '(' .. name .. '\1', '[' .. name .. '\0', 'LIMIT', 0, most - #out / 2))
    from, to, name = '(' .. name .. '\1', nil, nil
  until #out >= 2 * most or job ~= ''
elseif index == 'timer' then
  -- Many runs may have one score, so the rank of the place is found by a search, by bytes: <
  -- follows the locale of the server.
  local function before(a, b)
    for i = 1, math.min(#a, #b) do
      local x, y = string.byte(a, i), string.byte(b, i)
      if x ~= y then return x < y end
    end
    return #a < #b
  end
  local rank, score, last = 0, string.match(after, '^([^%z]*)%z(.*)$')
  if score then
    rank = call('ZCOUNT', TIMER, '-inf', '(' .. score)
    local high = call('ZCOUNT', TIMER, '-inf', score)
    while rank < high do
      local middle = math.floor((rank + high) / 2)
      if before(last, call('ZRANGE', TIMER, middle, middle)[1]) then high = middle else rank = middle + 1 end
    end
  end
  local members = call('ZRANGE', TIMER, rank, rank + most - 1)
  for i = 1, #members do
    out[#out + 1] = members[i]
    out[#out + 1] = call('ZSCORE', TIMER, members[i]) .. '\0' .. members[i]
  end
else
  add(call('ZRANGEBYLEX', index == 'busy' and BUSY or READY, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, most))
end
return out
