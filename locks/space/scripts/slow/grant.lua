-- Granting a free bundle to a request or a wait.

-- seize takes a free bundle for a request that may be nested in others: their shares stay below
-- it.
function S.seize(id, session, info, items, limits, under)
  local nested, over = within(under), {}
  for i = 1, nested and #items or 0 do
    local name = named(items[i])
    if sub(items[i], 1, 1) == 'x' and call('HEXISTS', OWN, name) == 1 then over[#over + 1] = name end
  end
  local token = grant(id, session, info, items, limits)
  for i = 1, #over do call('HSET', OWN, over[i], 'u' .. id) end
  return token
end

-- give passes a free bundle to a wait: a session's wait gets its hold and a message, the space's
-- wait gets an offer.
local function give(id, wait)
  local _, items = bundle(wait, W_ITEMS)
  call('ZREM', Q, unpack(queued(wait, id)))
  if wait[W_SESSION] ~= '@' then
    local resource, by
    for i = 1, #items do
      resource = named(items[i])
      by = freer[resource]
      if by then break end
    end
    forget(id, wait, 'g', by and resource, by and by[1], by and by[2])
    local token = S.seize(id, wait[W_SESSION], wait[W_INFO], items, wait[W_LIMITS], wait[W_UNDER])
    S.inform(wait[W_SESSION], 'g', id, token, ms)
    return
  end
  wait[W_STATE] = 'o'
  store(id, wait)
  occupy(items, 'o' .. id)
  call('ZADD', EXP, now + OFFER, 'o' .. id)
  call('ZADD', IDX, '0', '@\0o\0' .. id)
  S.offers[#S.offers + 1] = id
end

-- findOffers adds offers of other scripts that are not picked up yet to those of this script, and
-- returns how many it has found.
function S.findOffers(most)
  local found = call('ZRANGEBYLEX', IDX, '[@\0o\0', '(@\0o\1', 'LIMIT', '0', most)
  for i = 1, #found do S.offers[#S.offers + 1] = string.match(found[i], '^[^%z]*%z.%z(.*)$') end
  return #found
end

-- pickUp notes that an offer is picked up.
function S.pickUp(id) call('ZREM', IDX, '@\0o\0' .. id) end
