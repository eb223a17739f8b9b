-- Outputs: the ends of what the attempts at a run have printed.

-- eachOutput passes to f where the outputs in a value of OUTPUT begin and end, the numbers of their
-- attempts, and where these end, the last attempt first, until f returns true. It copies no output:
-- one may be long. last: the number of the run's last attempt that has ended.
local function eachOutput(value, last, f)
  local from = 1
  while from <= #value do
    local mark = string.find(value, '\255', from, true)
    local number, next = last, #value + 1
    if mark then
      next = string.find(value, '\255', mark + 1, true) or next
      number = sub(value, mark + 1, next - 1)
    end
    if f(from, (mark or next) - 1, number, next - 1) then return end
    from = next + 1
  end
end

-- outputOf returns the output of an attempt and its number, '' and '0' for none. number: that of
-- the attempt, or '' for the last one that has printed something. run: a record, perhaps one that
-- cannot be read.
local function outputOf(run, value, number)
  local text, found, last = '', '0', tonumber(run[R_ATTEMPT]) or 1
  if run[R_CLOSED] ~= '1' then last = last - 1 end
  eachOutput(value, format('%d', last), function(from, upto, of)
    if number ~= '' and number ~= of then return false end
    text, found = sub(value, from, upto), of
    return true
  end)
  return text, found
end

-- withOutput returns the value of OUTPUT for a run after its last attempt has printed a text. It
-- keeps at most 8 outputs, those of the last attempts, and 1 MiB of text: with more, the copies
-- would keep Redis busy for too long.
local function withOutput(id, run, succeeded, text)
  local number = run[R_ATTEMPT]
  if succeeded and number == '1' then return text end
  local n, bytes, first, last, unmarked = 1, #text, nil, nil, ''
  local value = bytes < 1048576 and call('HGET', OUTPUT, id) or ''
  eachOutput(value, format('%d', number - 1), function(from, upto, of, next)
    if of == number then return false end -- this finish was sent before
    n, bytes = n + 1, bytes + upto + 1 - from
    if n > 8 or bytes > 1048576 then return true end
    first, last, unmarked = first or from, next, upto == next and '\255' .. of or ''
  end)
  if not first then return text .. '\255' .. number end
  return text .. '\255' .. number .. '\255' .. sub(value, first, last) .. unmarked
end
