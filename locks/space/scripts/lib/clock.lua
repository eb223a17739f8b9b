-- The clock of a script, and what is due by it.

local concat = table.concat
local US = '\31'
local clock = call('TIME')
local micros = clock[1] .. sub('00000' .. clock[2], -6) -- microseconds as text
local ms = sub(micros, 1, -4) -- milliseconds as text
local us = micros + 0
local now = ms + 0

-- ends returns when a session ends, or nil if it has ended, reaped or not.
local function ends(session)
  local at = call('ZSCORE', EXP, 's' .. session)
  at = at and tonumber(at)
  return at and at > now and at or nil
end

-- quiet reports whether nothing is due, so that a script may take its fast path.
local function quiet() return redis.call('ZCOUNT', KEYS[1], '-inf', ms) == 0 end

-- soonest returns in how many ms the next entry of the timer wheel is due, or -1.
local function soonest()
  local first = call('ZRANGE', EXP, 0, 1, 'WITHSCORES')
  local at = first[2]
  if first[1] == 'e' then -- it comes first until the grace period ends
    at = call('HGET', META, 'grace') or '0'
    if first[4] and tonumber(first[4]) < tonumber(at) then at = first[4] end
  end
  return at and math.max(0, tonumber(at) - now) or -1
end
