-- asides counts the runs that are set aside, place by place. It changes nothing.
-- ARGV: 1 places at most  2 queue, '' for all  3 the place to continue after, '' to begin
-- Replies: the place to continue after, '' after the last one; then for each place: it, and how
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
