-- Heads: the next wait of each queue that settle walks.

-- walk returns the heads by ticket, the tickets as a heap, the oldest first, and the functions for
-- them. They are created only once something can be granted.
local function walk()
  local heap, heads = {}, {}

  -- grantable returns whether a request in a head's queue may still be granted, given the
  -- occupation of the resource.
  local function grantable(head, owner)
    local kind = owner and sub(owner, 1, 1)
    head.shared, head.permits = kind == 's', kind == 'p'
    if kind == 'p' then
      local used, most = permits(owner)
      return used < most
    end
    return not kind or kind == 's'
  end

  -- advance moves a head to the next wait in its queue that is worth examining, and returns
  -- whether there is one.
  local function advance(head)
    while true do
      head.at = head.at + 1
      if head.at > #head.members and not head.whole and (head.at == 1 or head.at > head.page) then
        head.members = call('ZRANGEBYLEX', Q, head.from, '(' .. head.name .. '\1', 'LIMIT', '0', PAGE_TEXT)
        head.from, head.at, head.page = '(' .. (head.members[PAGE] or ''), 1, PAGE
      end
      local member = head.members[head.at]
      if not member then return false end
      head.ticket, head.mode, head.reserve, head.id = string.match(member, '^[^%z]*%z([^%z]*)%z(.)%d*%z([^%z]*)%z(.*)$')
      if head.skip and head.ticket >= NESTED then -- that was the last nested one
        local jumps = head.ticket < head.skip
        if jumps and head.whole then return advance(head) end
        if jumps then head.from, head.at, head.members = '[' .. head.name .. '\0' .. head.skip, 0, {} end
        head.skip = nil
        if jumps then return advance(head) end
      end
      -- An exclusive request waits for all sharers to end, unless it is nested in one of them.
      if not head.shared or head.mode ~= 'x' or head.ticket < NESTED then return true end
      if tonumber(head.reserve) <= now then return false end
      looked = looked + 1 / 8
      if looked >= LOOK then return true end
    end
  end

  local function pushHead(head)
    local ticket = head.ticket
    if heads[ticket] then
      table.insert(heads[ticket], head)
      return
    end
    heads[ticket] = {head}
    local at = #heap + 1
    while at > 1 and heap[math.floor(at / 2)] > ticket do
      heap[at] = heap[math.floor(at / 2)]
      at = math.floor(at / 2)
    end
    heap[at] = ticket
  end

  local function popHead()
    local size, last, at = #heap - 1, table.remove(heap), 1
    while size > 0 do
      local below = 2 * at
      if below < size and heap[below + 1] < heap[below] then below = below + 1 end
      if below > size or heap[below] >= last then break end
      heap[at] = heap[below]
      at = below
    end
    if size > 0 then heap[at] = last end
  end

  return heap, heads, grantable, advance, pushHead, popHead
end
