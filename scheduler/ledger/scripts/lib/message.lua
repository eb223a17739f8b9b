-- Messages: what targets receive about the ends of runs. See "Messages" in doc.go.

-- EVENTS has the final states that are events of messages. A success is one in some cases, see
-- final.
local EVENTS = {failed = true, lost = true, missed = true}

-- post stores messages for a target about a job, texts of M_TEXT, unless too many are waiting: then
-- it counts them. A key with the wrong type, which only a foreign write can cause, must not keep a
-- run from its end: it stores nothing.
local function post(target, job, texts)
  local ALL, EACH = 10000, 1000 -- messages that may wait, and those for one target
  local group = target .. '\0' .. job
  local all, own = redis.pcall('ZCARD', MAIL), redis.pcall('ZLEXCOUNT', MAIL, '[' .. target .. '\0', '(' .. target .. '\1')
  local posts = redis.pcall('ZCARD', POST)
  if type(all) ~= 'number' or type(own) ~= 'number' or type(posts) ~= 'number' then return end
  local n = math.max(0, math.min(#texts, ALL - all, EACH - own))
  local last = redis.pcall('HINCRBY', MAILED, 'number', n)
  if type(last) ~= 'number' then return end
  if n < #texts then
    redis.pcall('HINCRBY', MAILED, 'dropped:' .. target, #texts - n)
    redis.pcall('HINCRBY', MAILED, 'silent:' .. target, #texts - n)
  end
  if n == 0 then return end
  local members = {}
  for i = 1, n do
    members[2 * i - 1], members[2 * i] = '0', group .. '\0' .. pad(last - n + i) .. '\0' .. texts[i]
  end
  call('ZADD', MAIL, unpack(members))
  if not call('ZSCORE', POST, group) then call('ZADD', POST, ms, group) end
end

-- eachTarget calls f for each target in a definition (JSON), with its name and the set of its
-- events. A foreign write may have put anything there.
local function eachTarget(definition, f)
  local ok, job = pcall(cjson.decode, definition)
  local list = ok and type(job) == 'table' and job.notify
  if type(list) ~= 'table' then return end
  for i = 1, #list do
    local one = list[i]
    if type(one) == 'table' and type(one.target) == 'string' and type(one.on) == 'table' then
      local events = {}
      for k = 1, #one.on do events[one.on[k]] = true end
      f(one.target, events)
    end
  end
end

-- tell stores messages of an event for those targets in a definition (JSON) that want them. A
-- recovery is for the targets that had a message since the last success; for any other event, it
-- notes the targets that want to know of the next success. silence: the g<job> of a late job.
local function tell(job, definition, event, texts, silence)
  local flag = call('HGET', FACTS, 'n' .. job)
  local late, had = string.match(flag or '', '^([^\30]*)(.*)$')
  local new = had
  eachTarget(definition, function(target, events)
    local waits = string.find(had .. '\30', '\30' .. target .. '\30', 1, true)
    if events[event] and (event ~= 'recovered' or waits) then post(target, job, texts) end
    if events[event] and events.recovered and not waits then new = new .. '\30' .. target end
  end)
  if event == 'recovered' then
    call('HDEL', FACTS, 'n' .. job)
  elseif silence or new ~= had then
    call('HSET', FACTS, 'n' .. job, (silence or late) .. new)
  end
end

-- messageOf returns the message about the end of a run, whose record has that end. ending: what
-- distinguishes it from other ends of the run, which was reopened. log: its attempts.
local function messageOf(id, run, event, ending, log)
  -- the quotation marks of an error are escaped
  local failure = string.match(string.match(log, '.*({"attempt":.*)$') or '', '"error":(".*)}$') or ''
  return M_TEXT{ID = id .. '.' .. ending; EVENT = event; AT = ms; RUN = id; TRIGGER = run[R_TRIGGER]; TICK = run[R_TICK]; UPTO = run[R_UPTO];
    ATTEMPT = run[R_ATTEMPT]; STARTED = run[R_FIRST]; FAILS = run[R_FAILS]; CRASHES = run[R_CRASHES]; WORKER = run[R_SESSION];
    REASON = run[R_REASON]; ERROR = failure}
end
