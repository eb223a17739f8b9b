-- skip declares that a span of ticks does not run: those still undecided, and those whose runs have
-- not started.
-- ARGV: 1 job  2 first and  3 last tick (ms)  4 the actor and the reason  5 history: runs
--       6 history: ms  7 the member of open after which to continue, "" to begin  8 entry for the
--       audit
-- Replies: done, number of skipped runs, the member after which to continue ("" when nothing is
--   left), pushes | none: the job does not exist | many: it has too many such spans
-- LOOK, MOST and BYTES bound how long a call keeps Redis busy: runs that are examined and ended,
-- and the size of those.
local LOOK, MOST, BYTES = 200, 25, 256 * 1024
local job, list = ARGV[1], {}
local cursor = call('HGET', CURSOR, job)
if not cursor then return {'none', 0, '', list} end
local spans, span = call('HGET', FACTS, 's' .. job) or '', ARGV[2] .. '\30' .. ARGV[3] .. '\30' .. ARGV[4]
local _, count = string.gsub(spans, '\31', '')
local new = tonumber(ARGV[3]) > tonumber(cursor) and not string.find(US .. spans .. US, US .. span .. US, 1, true)
if new and count >= 99 then return {'many', 0, '', list} end
check()
if new then call('HSET', FACTS, 's' .. job, spans == '' and span or spans .. US .. span) end
audit(ARGV[8])

local S, n, bytes = space(), 0, 0
local from, to = '[' .. job .. '\0' .. pad(math.max(1, tonumber(ARGV[2]))), '(' .. job .. '\0' .. pad(ARGV[3]) .. '\1'
if ARGV[7] ~= '' then from = '(' .. ARGV[7] end
local others = call('ZRANGEBYLEX', OPEN, from, to, 'LIMIT', 0, LOOK)
local last = #others == LOOK and others[LOOK] or ''
for i = 1, #others do
  local id = string.match(others[i], '([^%z]*)$')
  bytes = bytes + call('HSTRLEN', RUN, id)
  local run = load(id)
  if run and run[R_FIRST] == '' then
    bytes = bytes + call('HSTRLEN', BODY, id)
    final(S, id, run, 'skipped', ARGV[4])
    n = n + 1
  end
  if (n == MOST or bytes >= BYTES) and i < #others then
    last = others[i]
    break
  end
end
trim(tonumber(ARGV[5]), tonumber(ARGV[6]))
S.settle()
offered(S, list)
return {'done', n, last, list}
