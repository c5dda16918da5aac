-- The digital twin of each device: torpor clef deploy devices twin.lua --key 'path:/devices/{key}' -p 8080
-- A device reports its temperature by POST. If it is silent for a minute, it counts as lost, and the twin of its site hears of it.
local SILENCE = 60
state = { readings = {}, is_lost = false }

function http(request)
  if request.method == "POST" then
    local reading = json.decode(request.body)
    state.readings[#state.readings + 1] = { at = now(), temperature = reading.temperature }
    if #state.readings > 1000 then table.remove(state.readings, 1) end
    state.is_lost, state.site = false, reading.site or state.site
    alarm(SILENCE, "silent")       -- replaces the one that was set before
    return
  end
  local last = state.readings[#state.readings]
  return json.encode({ temperature = last and last.temperature, is_lost = state.is_lost, lost = state.lost }) .. "\n"
end

function silent()
  state.is_lost = true
  print("silent for " .. SILENCE .. " s")
  if state.site then send("devices/" .. state.site, "lost", state.readings[#state.readings].at) end
end

function lost(at)
  state.lost = (state.lost or 0) + 1
  print("lost one of its devices, last heard at " .. os.date("!%H:%M", at // 1))
end
