-- pick makes runs that were set aside due again, for a worker that has what they need and claims them at once. Should it end
-- before, the sweep pushes them, as any push that is not confirmed.
-- ARGV: 1 entries at most  2... places, each a queue and a need, joined by \0; none: the places are listed
-- Replies: places that have runs | for each run: id, n, queue
local most, list = tonumber(ARGV[1]), {}

-- first returns the run of a place that has been due for longest. Entries of runs that are due no more are removed, some.
local function first(place)
  for _ = 1, 16 do
    local member = call('ZRANGEBYLEX', ASIDE, '[' .. place .. '\0', '(' .. place .. '\1', 'LIMIT', '0', '1')[1]
    if not member then return nil end
    local id = string.match(member, '([^%z]*)$')
    local run = load(id)
    if run and run[STATE] == 'due' then return member, id, run end
    call('ZREM', ASIDE, member)
  end
end

if #ARGV == 1 then
  local from = '-'
  while #list < most do
    local member = call('ZRANGEBYLEX', ASIDE, from, '+', 'LIMIT', '0', '1')[1]
    if not member then break end
    local place = string.match(member, '^([^%z]*%z[^%z]*)')
    if first(place) then list[#list + 1] = place end
    from = '[' .. place .. '\1'
  end
  return list
end

for i = 2, #ARGV do
  while #list < 3 * most do
    local member, id, run = first(ARGV[i])
    if not member then break end
    call('ZREM', ASIDE, member)
    due(id, run)
    pushes(list, id, run)
  end
end
return list
