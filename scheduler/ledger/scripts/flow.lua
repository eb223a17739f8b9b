-- flow counts the attempts that a worker has begun at runs of a queue, and takes a sample of the
-- queue if the last one is 4 s old. FLOW, the last key, expires when no worker has sent one for a
-- minute. flow also finds the next run, if it has waited for its locks and its delivery is in the
-- queue: that may be behind those of runs that became due later.
-- ARGV: 1 queue  2 attempts that the worker has begun since it last sent this
-- Replies: how many samples of the last 62 s there are; that run (id, n, queue), or nothing
local FLOW, queue = KEYS[#KEYS], ARGV[1]
local began, samples = string.match(call('GET', FLOW) or '', '^(%d+)(.*)$')
began = format('%.0f', (began or 0) + ARGV[2])
local kept, last = {}, 0
for sample, at in string.gmatch(samples or '', '\31((%d+)[^\31]*)') do
  last = tonumber(at)
  if last <= now and now - last <= 62000 then kept[#kept + 1] = sample end
end
if #kept == 0 or now - last >= 4000 then
  kept[#kept + 1] = ms .. ' ' .. call('ZLEXCOUNT', READY, '[' .. queue .. '\0', '(' .. queue .. '\1') .. ' ' .. began
end
call('SET', FLOW, began .. '\31' .. concat(kept, '\31'), 'PX', 60000)
local list = {}
local id, run, queued = goesFirst(queue, now + 1)
if queued and run[R_WAITS] == '1' then pushes(list, id, run) end
return {#kept, list}
