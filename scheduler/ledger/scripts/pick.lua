-- pick makes runs that were set aside due again, for a worker that has what they need and claims
-- them at once. If it ends before that, the sweep pushes them, like any push that is not confirmed.
-- ARGV: 1 entries at most  2 list | pick  3... list: the shelf to continue after, '' to begin;
--       pick: shelves, each a queue and a need, joined by \0
-- Replies to list: the shelf to continue after, '' after the last one; then shelves that have runs
--   to pick: 1 when the search ended early, at stale entries, else 0; then
--   for each run: id, n, queue
-- Stale entries are removed, at most SPARE of them in one call: those of runs that are no longer
-- due, those of runs that have become due again since, perhaps in another queue, and those of runs
-- that cannot be read. Such a run has a delivery, or another entry.
local SPARE = 200
local most, list, removed, early = tonumber(ARGV[1]), {}, 0, false

-- first returns the run of a shelf that has been due for longest. It sets early when it must not
-- remove more entries.
local function first(shelf)
  local queue = string.match(shelf, '^[^%z]*')
  while true do
    local member = call('ZRANGEBYLEX', ASIDE, '[' .. shelf .. '\0', '(' .. shelf .. '\1', 'LIMIT', '0', '1')[1]
    if not member then return nil end
    local id = string.match(member, '([^%z]*)$')
    local run, broken = load(id)
    if run and run[R_STATE] == 'due' and run[R_QUEUE] == queue and member == shelf .. '\0' .. pad(run[R_SINCE]) .. '\0' .. id then
      return member, id, run
    end
    if removed == SPARE then
      early = true
      return nil
    end
    removed = removed + 1
    if broken then unreadable(id) end
    call('ZREM', ASIDE, member)
  end
end

if ARGV[2] == 'list' then
  local from, after = ARGV[3] == '' and '-' or '[' .. ARGV[3] .. '\1', ''
  while #list < most do
    local member = call('ZRANGEBYLEX', ASIDE, from, '+', 'LIMIT', '0', '1')[1]
    if not member then
      after = ''
      break
    end
    after = string.match(member, '^([^%z]*%z[^%z]*)')
    -- pick continues where this ended early.
    if first(after) or early then list[#list + 1] = after end
    from = '[' .. after .. '\1'
  end
  table.insert(list, 1, after)
  return list
end

for i = 3, #ARGV do
  while #list < 3 * most do
    local member, id, run = first(ARGV[i])
    if not member then break end
    call('ZREM', ASIDE, member)
    due(id, run)
    pushes(list, id, run)
  end
end
table.insert(list, 1, early and 1 or 0)
return list
