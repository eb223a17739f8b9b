-- keep has the runs of paused queues that wait for their locks step back: they are offered nothing, and others may pass
-- them. When a queue goes on they are in their old places, and what is free is offered to them in the same step.
-- ARGV: 1 all: these queues are paused, and no others | pause | resume: this queue  2... queues
-- Replies: the pushes to do (id, n, queue)
local list, paused, names = {}, {}, {}
local before = call('HGET', META, 'kept') or ''
if ARGV[1] ~= 'all' then
  for name in string.gmatch(before, '[^\31]+') do paused[name] = true end
end
for i = 2, #ARGV do paused[ARGV[i]] = ARGV[1] ~= 'resume' or nil end
for name in pairs(paused) do names[#names + 1] = name end
table.sort(names)
if concat(names, US) == before then return list end
local S = space()
S.keep(names)
S.settle()
offered(S, list)
return list
