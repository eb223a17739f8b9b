-- Jobs: cursors, the text of carried definitions, and remembered ids.

-- recall takes a re-asserted cursor, unless a higher one is known, and returns the job's. A cursor
-- that was set by a registration without any knowledge of the job gives way.
local function recall(job, cursor, last)
  local born = cursor and call('HGET', FACTS, 'g' .. job) == 'r' .. cursor
  if last == cursor or cursor and not born and tonumber(last) < tonumber(cursor) then return cursor end
  call('HSET', CURSOR, job, last)
  call('ZADD', REV, call('HINCRBY', LEDGER, 'rev', 1), job)
  return last
end

-- versionsOf reads a text of versionsText: the hash of a job's active definition, or nil, and its
-- definitions.
local function versionsOf(text)
  local active, versions = nil, {}
  for entry in string.gmatch(text or '', '[^\31]+') do
    if not active then
      active = entry
    else
      local hash, order, trigger, configs = string.match(entry, C_MATCH[[(HASH) (ORDER) (TRIGGER) (CONFIGS=.*)]])
      versions[#versions + 1] = {hash = hash, order = tonumber(order), trigger = trigger, configs = configs, seen = 0}
    end
  end
  return active, versions
end

-- known returns what versionsOf does, for a job.
local function known(job) return versionsOf(call('HGET', FACTS, 'v' .. job)) end

-- checkJobs raises the error of keys that have the wrong type, before register and activate write
-- any of them: a definition that is active must be stored.
local function checkJobs()
  call('HLEN', CURSOR)
  call('HLEN', FACTS)
  call('HLEN', DEF)
  call('ZCARD', REV)
end

-- versionsText returns what FACTS has of a job's definitions.
local function versionsText(active, versions)
  local text = active
  for i = 1, #versions do
    local v = versions[i]
    text = text .. US .. C_TEXT{HASH = v.hash; ORDER = v.order; TRIGGER = v.trigger; CONFIGS = v.configs}
  end
  return text
end

-- forget drops ids that need not be remembered any more, at most this number of them.
local function forget(most)
  local old = call('ZRANGEBYSCORE', IDS, '-inf', ms, 'LIMIT', '0', most)
  if #old == 0 then return end
  call('ZREM', IDS, unpack(old))
  for i = 1, #old do
    local job = sub(old[i], 1, 1) == '\1' and sub(old[i], 2)
    if job and call('HEXISTS', FACTS, 'v' .. job) == 0 then call('ZREM', REV, job) end
    old[i] = 'a' .. old[i]
  end
  call('HDEL', FACTS, unpack(old))
end
