-- fence runs before every script of this package and before those given to NewScript. It ends a
-- script with a lower token than one seen, and otherwise records the token. The lines after it
-- see KEYS and ARGV without those of fence.
-- KEYS: 1... the records of the resources, ARGV[2] of them; then the script's own
-- ARGV: 1 token, in decimal, below 2^53  2 number of records  3 how long a record is kept, ms; 0:
--         forever; then the script's own
-- Replies: error LOCKSTEPSTALE <number of the resource> <token seen>, and nothing was written; else
--   the script's own
-- A record is the highest token that was accepted, as it was given. All records are read before the
-- first is written.
local KEYS, ARGV = KEYS, ARGV
do
  local token, n, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3]
  for i = 1, n do
    local seen = redis.call('GET', KEYS[i])
    local number = seen and tonumber(seen)
    -- A record that is not a number refuses every token, since its origin is unknown.
    if seen and not (number and number <= tonumber(token)) then
      return redis.error_reply('LOCKSTEPSTALE ' .. i .. ' ' .. seen)
    end
  end
  for i = 1, n do
    if keep == '0' then
      redis.call('SET', KEYS[i], token)
    else
      redis.call('SET', KEYS[i], token, 'PX', keep)
    end
  end
  local function from(list, first)
    local rest = {}
    for i = first, #list do rest[i - first + 1] = list[i] end
    return rest
  end
  KEYS, ARGV = from(KEYS, n + 1), from(ARGV, 4)
end
