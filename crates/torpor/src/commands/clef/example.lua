-- One Clef for each key, with its own variables. Try it:
--   torpor clef dev FILE --key path:/{key} -p 8080
--   curl localhost:8080/ann

-- `state` is kept when the program is changed; other variables begin anew then.
state = { visits = 0, lines = {} }

-- Those who are connected.
local members = {}

-- Called once, when the Clef is created.
function create(key)
  state.key = key
end

-- Answers a request: with a string, or a table with status, headers and body.
function http(request)
  if request.path:find("/nothing$") then
    return { status = 404, body = "there is nothing here\n" }
  end
  state.visits = state.visits + 1
  -- Calls `forget` in an hour, also if everything sleeps by then. Each call sets it anew.
  alarm(3600, "forget")
  return state.key .. " was here " .. state.visits .. " times\n"
end

-- Serves a WebSocket connection, which stays open while the Clef sleeps.
function websocket(socket)
  members[socket] = true
  for line in socket:messages() do
    state.lines[#state.lines + 1] = line
    for member in pairs(members) do member:send(line) end
  end
  members[socket] = nil
end

-- Called by the alarm.
function forget()
  state.visits, state.lines = 0, {}
  print("all is forgotten")
end

-- Called by: torpor clef call NAME/KEY add 3
function add(number)
  state.visits = state.visits + number
  return state.visits
end
