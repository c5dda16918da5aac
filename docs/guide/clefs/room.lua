-- A chat room for each key: torpor clef deploy rooms room.lua --key 'path:/rooms/{key}' -p 8080
-- Browsers connect to ws://HOST:8080/rooms/kitchen; GET the same path for the last lines.
local LINES = 100
local members, history = {}, {}

function websocket(socket)
  members[socket] = true
  for _, line in ipairs(history) do socket:send(line) end
  for line in socket:messages() do
    history[#history + 1] = line
    if #history > LINES then table.remove(history, 1) end
    for other in pairs(members) do other:send(line) end
  end
  members[socket] = nil
end

function http()
  return table.concat(history, "\n") .. "\n"
end
