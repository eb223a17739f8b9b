-- keep makes the runs of paused queues that wait for their locks step back: they get no offers, and
-- others may pass them. When a queue is resumed they are in their old places, and what is free is
-- offered to them in the same step.
-- ARGV: 1 all: these queues are paused, and no others | pause | resume: this queue  2... queues
-- Replies: the pushes to do (id, n, queue)
local list, paused, names = {}, {}, {}
local before = keptBack()
if ARGV[1] ~= 'all' then
  for name in string.gmatch(before, '[^\31]+') do paused[name] = true end
end
for i = 2, #ARGV do paused[ARGV[i]] = ARGV[1] ~= 'resume' or nil end
for name in pairs(paused) do names[#names + 1] = name end
table.sort(names)
if concat(names, US) == before then return list end
local S = space()
S.keep(names) -- its first write is a removal, so that a full Redis does not refuse it

-- note adds the begin or the end of a pause to those of a queue, of which the last 50 are kept: see
-- stopped.
local function note(queue, begins)
  local last = {}
  for from, upto in string.gmatch(call('HGET', LEDGER, 'pauses:' .. queue) or '', '(%d+)%-(%d*)') do
    if upto ~= '' then
      last[#last + 1] = from .. '-' .. upto
    elseif not begins then
      last[#last + 1] = from .. '-' .. ms
    end
  end
  if begins then last[#last + 1] = ms .. '-' end
  call('HSET', LEDGER, 'pauses:' .. queue, concat(last, ' ', math.max(1, #last - 49)))
end
local was = {}
for name in string.gmatch(before, '[^\31]+') do
  was[name] = true
  if not paused[name] then note(name, false) end
end
for i = 1, #names do
  if not was[names[i]] then note(names[i], true) end
end
S.settle()
offered(S, list)
return list
