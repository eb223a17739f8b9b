-- Outputs: the ends of what the attempts at a run have printed.

-- eachOutput passes the outputs in a value of OUTPUT to f, with the numbers of their attempts, the
-- last attempt first, until f returns true. last: the number of the run's last attempt that has
-- ended.
local function eachOutput(value, last, f)
  local from = 1
  while from <= #value do
    local mark = string.find(value, '\255', from, true)
    local number, next = last, #value + 1
    if mark then
      next = string.find(value, '\255', mark + 1, true) or next
      number = sub(value, mark + 1, next - 1)
    end
    if f(sub(value, from, (mark or next) - 1), number) then return end
    from = next + 1
  end
end

-- outputOf returns the output of an attempt and its number, '' and '0' for none. number: that of
-- the attempt, or '' for the last one that has printed something. run: a record, perhaps one that
-- cannot be read.
local function outputOf(run, value, number)
  local text, found, last = '', '0', tonumber(run[R_ATTEMPT]) or 1
  if run[R_CLOSED] ~= '1' then last = last - 1 end
  eachOutput(value, format('%d', last), function(one, of)
    if number ~= '' and number ~= of then return false end
    text, found = one, of
    return true
  end)
  return text, found
end

-- withOutput returns the value of OUTPUT for a run after its last attempt has printed a text. It
-- keeps at most 8 outputs and 2 MiB, those of the last attempts.
local function withOutput(id, run, succeeded, text)
  local number = run[R_ATTEMPT]
  if succeeded and number == '1' then return text end
  local all, n, bytes = {text, number}, 1, #text
  eachOutput(call('HGET', OUTPUT, id) or '', format('%d', number - 1), function(one, of)
    if of == number then return false end -- this finish was sent before
    n, bytes = n + 1, bytes + #one
    if n > 8 or bytes > 2097152 then return true end
    all[2 * n - 1], all[2 * n] = one, of
  end)
  return concat(all, '\255')
end
