-- The work of one script: what it freed, and how much it may examine.

local S = {offers = {}, more = false}
local OFFER = 2000 -- ms
local NESTED = '1' -- tickets below it belong to nested requests
-- The most that one script does: waits examined, due entries, holds and waits of ended sessions,
-- names freed before it stops freeing more, waits of a queue read at once, and records read by
-- searches. From MANY names on, reading all queues at once may be cheaper than reading theirs.
local LOOK, DUE, HOLDS, NAMES, PAGE, SEARCH, MANY = 64, 64, 100, 250, 16, 500, 32
-- The queues of a bundle of FEW names or more are read GROUP by GROUP, see queues. For a bundle
-- of more than WIDE names, only the oldest waits in its queues are examined, and TURNS of the old
-- ones among them, see older. WIDEST bounds the waits, and the names by four, at which announce
-- looks.
local FEW, GROUP, WIDE, TURNS, WIDEST = 4, 16, 32, 500, 500
-- Redis formats each number that it receives, which takes as long as a short command. These are
-- passed most often.
local LOOK_TEXT, PAGE_TEXT, GROUP_TEXT = format('%d', LOOK), format('%d', PAGE), format('%d', GROUP)
-- The resources to settle, each with the ticket to begin at, see unbar.
local freed, since, front, looked = {}, {}, {}, 0
local web, spent, turns, searched = nil, 0, 0, 0 -- see inside, older and announce
-- resource -> the last hold or request that this script has freed it of: its ID and its info
local freer = {}

-- within returns the holds that a request is nested in as a set, or nil if there are none.
local function within(under)
  local set
  for id in string.gmatch(under, '[^ ]+') do
    set = set or {}
    set[id] = true
  end
  return set
end

local function free(names, ticket)
  ticket = ticket or ''
  for i = 1, #names do
    local name = names[i]
    if not since[name] then freed[#freed + 1] = name end
    if not since[name] or ticket < since[name] then since[name] = ticket end
  end
end

-- later puts queues on the work list: entries of the timer wheel that are due at once.
local function later(entries)
  for i = 1, #entries, 1000 do
    local args = {}
    for j = i, math.min(i + 999, #entries) do
      args[#args + 1] = ms
      args[#args + 1] = entries[j]
    end
    call('ZADD', EXP, unpack(args))
  end
  S.more = S.more or #entries > 0
end

-- visit makes settle() walk the queues of resources that were not freed: a request was queued for
-- something free.
function S.visit(names) free(names) end

-- inform publishes a message to a session, under its next revision.
function S.inform(session, kind, ...)
  local rev = call('HINCRBY', META, 'rev:' .. session, 1)
  notify(session, concat({kind, rev, ...}, US))
end

-- tell notifies the desk of offers. A script that makes the offered runs due itself does not call
-- it.
function S.tell()
  if #S.offers == 0 then return end
  local desk = call('HGET', META, 'desk')
  if desk then notify(desk, 'o') end
end

-- grace returns for how many more ms nothing is granted, or nil.
function S.grace()
  if S.resumes == nil then
    local upto = call('HGET', META, 'grace')
    S.resumes = upto and tonumber(upto) or 0
  end
  return S.resumes > now and S.resumes - now or nil
end
