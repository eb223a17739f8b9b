-- skip declares that a span of ticks is not to run: those still to be decided, and those whose runs have not started.
-- ARGV: 1 job  2 first and  3 last tick (ms)  4 who and why  5 history: runs  6 history: ms  7 entry for the audit
-- Replies: done, number of runs that were skipped, 1 when more of them are left (call again), pushes | none: there is no
-- such job | many: it has too many such spans
local job, list = ARGV[1], {}
local cursor = call('HGET', CURSOR, job)
if not cursor then return {'none', 0, 0, list} end
local spans, span = call('HGET', FACTS, 's' .. job) or '', ARGV[2] .. '\30' .. ARGV[3] .. '\30' .. ARGV[4]
local _, count = string.gsub(spans, '\31', '')
local new = tonumber(ARGV[3]) > tonumber(cursor) and not string.find(US .. spans .. US, US .. span .. US, 1, true)
if new and count >= 99 then return {'many', 0, 0, list} end
check()
if new then call('HSET', FACTS, 's' .. job, spans == '' and span or spans .. US .. span) end
audit(ARGV[7])

local S, n = space(), 0
local from, to = '[' .. job .. '\0' .. pad(math.max(1, tonumber(ARGV[2]))), '(' .. job .. '\0' .. pad(ARGV[3]) .. '\1'
local others = call('ZRANGEBYLEX', OPEN, from, to)
local more = 0
for i = 1, #others do
  local id = string.match(others[i], '([^%z]*)$')
  local run = load(id)
  if run and run[FIRST] == '' then
    if n == 100 then
      more = 1
      break
    end
    final(S, id, run, 'skipped', ARGV[4])
    n = n + 1
  end
end
trim(tonumber(ARGV[5]), tonumber(ARGV[6]))
S.settle()
offered(S, list)
return {'done', n, more, list}
