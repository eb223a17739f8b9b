-- asides counts the runs that are set aside, shelf by shelf. It changes nothing.
-- ARGV: 1 shelves at most  2 queue, '' for all  3 the shelf to continue after, '' to begin
-- Replies: the shelf to continue after, '' after the last one; then for each shelf: it, and how
--   many runs, some of which may no longer be due
local list, most, queue, after = {}, tonumber(ARGV[1]), ARGV[2], ARGV[3]
local from = after ~= '' and '[' .. after .. '\1' or queue ~= '' and '[' .. queue .. '\0' or '-'
local upto = queue ~= '' and '(' .. queue .. '\1' or '+'
for i = 1, most do
  local member = call('ZRANGEBYLEX', ASIDE, from, upto, 'LIMIT', '0', '1')[1]
  if not member then
    after = ''
    break
  end
  after = string.match(member, '^([^%z]*%z[^%z]*)')
  from = '[' .. after .. '\1'
  list[2 * i - 1], list[2 * i] = after, call('ZLEXCOUNT', ASIDE, '[' .. after .. '\0', '(' .. after .. '\1')
end
table.insert(list, 1, after)
return list
