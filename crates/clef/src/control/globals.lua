-- Lists the global variables that a program has made: a table of { name, type, value }, and how many are left out.
-- It must not call what the program has defined: no metamethods, no `pairs`.
local standard, most_variables, most_counted = ..., 500, 200000
local is_standard = {}
for name in string.gmatch(standard, '%S+') do is_standard[name] = true end

local function text(value)
  local short = string.format('%q', #value > 60 and string.sub(value, 1, 60) or value)
  short = string.gsub(short, '\\\n', '\\n')
  return #value > 60 and short .. '… ' .. #value .. ' bytes' or short
end

local function scalar(value)
  local kind = type(value)
  if kind == 'string' then return text(value) end
  if kind == 'number' or kind == 'boolean' then return tostring(value) end
  return kind == 'table' and (next(value) == nil and '{}' or '{…}') or kind
end

local counted = 0
local function entries(value)
  local shown, count = {}, 0
  for key, inner in next, value do
    count, counted = count + 1, counted + 1
    if count <= 4 then
      local is_name = type(key) == 'string' and string.find(key, '^[%a_][%w_]*$') and #key <= 60
      local name = is_name and key or '[' .. scalar(key) .. ']'
      shown[count] = key == count and scalar(inner) or name .. ' = ' .. scalar(inner)
    end
    if counted > most_counted then
      return shown, 'at least ' .. count
    end
  end
  return shown, count
end

local function short(value)
  if type(value) ~= 'table' then return scalar(value) end
  local shown, count = entries(value)
  if count == 0 then return '{}' end
  if count ~= #shown then shown[#shown + 1] = '…' end
  return '{' .. table.concat(shown, ', ') .. '} ' .. count .. (count == 1 and ' entry' or ' entries')
end

local found, left_out = {}, 0
for name, value in next, _G do
  if not is_standard[name] then
    if #found < most_variables then
      found[#found + 1] = { type(name) == 'string' and name or '[' .. scalar(name) .. ']', type(value), short(value) }
    else
      left_out = left_out + 1
    end
  end
end
return found, left_out
