-- Settle: grant what was freed to the waits for it.

-- settle grants what was freed to the waits for it: to each grantable wait, the oldest first,
-- whichever of the freed resources it waits for. It walks all their queues at once, by ticket.
-- During a grace period it does nothing; reap ends that and then has all waits examined. On a
-- server that the space does not know it grants nothing and begins a grace period, which the next
-- greeting there extends as needed.
function S.settle()
  if #freed == 0 then return end
  local names, owners = {}, {}
  if call('ZCARD', Q) > 0 and not S.grace() and S.resumes == 0 then names = freed end
  local from, nested = since, front
  freed, since, front = {}, {}, {}
  if #names == 0 then return end

  local heap, heads, grantable, advance, pushHead, popHead = walk()
  local left, some, all = {}, queues(names) -- left: for the next script
  if some then
    local queued = {}
    for i = 1, #names do
      if some[names[i]] then queued[#queued + 1] = names[i] end
    end
    names = queued
  end
  for i = 1, #names do
    local name, owner = names[i], nil
    if looked >= LOOK then
      left[#left + 1] = 'g' .. name .. '\0' .. (nested[name] and '' or from[name])
    else
      if (i - 1) % 500 == 0 then owners = call('HMGET', OWN, unpack(names, i, math.min(i + 499, #names))) end
      owner = owners[(i - 1) % 500 + 1]
      looked = looked + (all and 1 / 8 or 1 / 16)
      local head = {name = name, from = '[' .. name .. '\0' .. from[name], members = {}, at = 0}
      if nested[name] then head.from, head.skip = '[' .. name .. '\0', from[name] end
      if some and not all and from[name] == '' then -- the beginning of the queue is known already
        head.members, head.page, head.from = {some[name]}, 1, '(' .. some[name]
      elseif all then
        head.members, head.whole = some[name], true
        if not nested[name] and from[name] ~= '' then -- from there on
          while head.members[head.at + 1] and head.members[head.at + 1] < name .. '\0' .. from[name] do head.at = head.at + 1 end
        end
      end
      head.first = from[name] == ''
      if grantable(head, owner) and advance(head) then
        head.first = head.first and head.at == 1
        pushHead(head)
      end
    end
  end

  local unknown -- whether the space does not know this server; read before the first grant
  while heap[1] and looked < LOOK do
    local ticket = heap[1]
    local same = heads[ticket]
    local wait = S.wait(same[1].id)
    local weight = 1 + math.floor((#wait - W_ITEMS) / 16)
    -- a very large request gets its own script
    if looked + weight > LOOK and looked > LOOK / 4 then break end
    looked = looked + weight
    -- back: kept back, but it has not stepped back yet.
    local back, given = wait[W_SESSION] == '@' and kept(wait[W_LIMITS]), false
    -- no request passes it
    local barred = not back and ticket >= NESTED and tonumber(wait[W_RESERVE]) <= now
    if not back and (wait[W_SESSION] == '@' or ends(wait[W_SESSION])) then
      local _, items = bundle(wait, W_ITEMS)
      local first = {}
      for i = 1, #same do first[same[i].name] = same[i].first end
      local resource, _, beaten = S.blocked(items, ticket, wait, within(wait[W_UNDER]), first)
      given = not resource and #beaten == 0
      if given then
        if unknown == nil then unknown = strange() end
        if unknown then
          S.resumes = tonumber(pause(0, 0))
          return
        end
        give(wait.id, wait)
      end
    end
    popHead()
    heads[ticket] = nil
    for i = 1, #same do
      local head, stay = same[i], nil
      if given then
        stay = head.mode ~= 'x' and grantable(head, call('HGET', OWN, head.name))
      else
        stay = not (barred and head.mode == 'x' and not head.permits)
      end
      head.first = false
      if stay and advance(head) then pushHead(head) end
    end
  end
  for i = 1, #heap do
    local same = heads[heap[i]]
    for j = 1, #same do left[#left + 1] = 'g' .. same[j].name .. '\0' .. heap[i] end
  end
  later(left)
end
