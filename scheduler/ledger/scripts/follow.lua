-- follow asks the worker of a running run to pass on what the attempt prints, and reads what was
-- passed on. LIVE, the last key, exists while a client follows the run: each call keeps it for 6 s.
-- The worker is asked until it passes something on under this key, twice a second at most, however
-- many clients follow. It begins with the tail that it has kept, and begins anew for a client that
-- comes when the first of these entries are no longer kept.
-- ARGV: 1 run  2 the last entry that the caller has, or 0
-- Replies: state, number of the last attempt, then, if that runs, its worker, else "", 1 when it
--   passes its output on, else 0, why it could not be asked or "", the last entry, then of each
--   later one: attempt, from, up to, 1 at the end of the output, else 0, text | none
local LIVE, id, after = KEYS[#KEYS], ARGV[1], tonumber(ARGV[2])
local run, unread = load(id)
if not run and not unread then
  local past = call('HGET', HIST, id)
  if not past then return {'none'} end
  run = fields(string.match(past, F_MATCH[[(RUN)]]))
end
run = run or fresh('', '', '', '')
local kept = call('HMGET', LIVE, 'until', 'token', 'asked', 'n', 'first')
local last, begins = tonumber(kept[4] or 0), tonumber(kept[5] or 0)
local first, anew = last - 31, false
local refused, worker, passing = '', '', false
-- A reader may lack the right to write: it follows what others have asked for.
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then refused = reply.err end
  return refused == ''
end
if run[R_STATE] == 'running' then
  worker, passing = run[R_SESSION], kept[2] == run[R_TOKEN]
  if not kept[1] or tonumber(kept[1]) < now + 4000 then
    if try('HSET', LIVE, 'until', format('%.0f', now + 6000)) then try('EXPIREAT', LIVE, format('%.0f', math.ceil(now / 1000) + 10)) end
  end
  if passing and after == 0 and begins < first and try('HDEL', LIVE, 'token') then passing = false end
  anew = after == 0 and not passing -- the tail comes first
  if not passing and refused == '' and now - (kept[3] or 0) >= 500 and try('HSET', LIVE, 'asked', ms) then
    notify(worker, 'n' .. US .. 'output:' .. id)
  end
end

local out = {run[R_STATE], run[R_ATTEMPT], worker, passing and 1 or 0, refused, format('%.0f', last)}
if after >= first and after <= last then
  first = after + 1
elseif after == 0 then
  first = math.max(first, begins)
end
if anew or last == 0 or first > last then return out end
local names = {}
for i = first, last do names[#names + 1] = 'e' .. i % 32 end
local entries = call('HMGET', LIVE, unpack(names))
for k = 1, #names do
  local number, attempt, from, upto, ended, text = string.match(entries[k] or '', '^(%d+)\31(%d+)\31(%d+)\31(%d+)\31(%d)\31(.*)$')
  if number and tonumber(number) == first + k - 1 then
    local n = #out
    out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5] = attempt, from, upto, ended, text
  end
end
return out
