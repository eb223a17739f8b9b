-- Describe: what is in the way, for a reply.

-- describe reports what is in the way: resource, session ('' without one: a reservation, a
-- resting hold, a limit), ID, info, token, ms since, ms left (of the lease, or of the rest),
-- waits for the resource.
function S.describe(name, owner)
  local id, kind = sub(owner, 2), sub(owner, 1, 1)
  local waits = call('ZLEXCOUNT', Q, '[' .. name .. '\0', '(' .. name .. '\1')
  if kind == 'x' then
    local hold = held(id)
    local session, left = hold[H_SESSION], nil
    if session == '@' then
      session, left = '', tonumber(call('ZSCORE', EXP, 'd' .. id))
    else
      left = ends(session)
    end
    return name, session, id, hold[H_INFO], hold[H_TOKEN], format('%.0f', now - hold[H_SINCE]), format('%.0f', (left or now) - now), waits
  elseif kind == 'l' then
    return name, '', '', '', '0', '0', '0', waits
  end
  local wait = S.wait(id)
  return name, '', id, wait[W_INFO], '0', format('%.0f', now - wait[W_SINCE]), '0', waits
end
