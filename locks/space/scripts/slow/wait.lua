-- Waits: their records and their places in the queues.

local function queued(wait, id) -- returns the queue members of a wait
  local members = {}
  for i = W_ITEMS, #wait do
    local name, n = named(wait[i])
    local mode = sub(wait[i], 1, 1) .. (n or '')
    members[#members + 1] = name .. '\0' .. wait[W_TICKET] .. '\0' .. mode .. '\0' .. wait[W_RESERVE] .. '\0' .. id
  end
  return members
end

local function enter(wait, id)
  local members, args = queued(wait, id), {}
  for i = 1, #members do args[2 * i - 1], args[2 * i] = '0', members[i] end
  call('ZADD', Q, unpack(args))
end

local function store(id, wait) call('HSET', WAIT, id, concat(wait, US)) end

function S.wait(id)
  local record = call('HGET', WAIT, id)
  record = record and fields(record)
  if record then record.id = id end
  return record
end

-- ticket returns the ticket of a wait, or nil without one.
function S.ticket(id)
  local wait = S.wait(id)
  return wait and wait[W_TICKET]
end

-- patience returns for how many ms later requests may pass a wait.
function S.patience(id)
  local wait = S.wait(id)
  return wait[W_RESERVE] - wait[W_SINCE]
end

-- class returns the index entry of a wait of the space under its class, or nil if it has none.
local function class(id, wait)
  return wait[W_SESSION] == '@' and wait[W_LIMITS] ~= '' and '~k' .. wait[W_LIMITS] .. '\0' .. wait[W_TICKET] .. '\0' .. id or nil
end

-- unbar frees the queues of a wait that leaves them for the waits behind it. If the wait was old
-- enough to bar others, it also frees them for the nested ones, whose tickets come before all
-- others.
local function unbar(names, wait)
  free(names, wait[W_TICKET])
  if wait[W_TICKET] < NESTED or tonumber(wait[W_RESERVE]) > now then return end
  if S.nests == nil then S.nests = call('ZRANGEBYLEX', IDX, '[~u', '(~v', 'LIMIT', '0', '1')[1] ~= nil end
  for i = 1, S.nests and #names or 0 do front[names[i]] = true end
end
