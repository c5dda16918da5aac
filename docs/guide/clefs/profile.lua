-- A profile and a counter of visits for each user: torpor clef deploy users profile.lua --key 'path:/users/{key}' -p 8080
-- GET shows it, PUT with JSON changes it. What is in `state` survives new code.
state = { visits = 0, profile = {} }

function create(key)
  state.profile.name = key
end

function http(request)
  if request.method == "PUT" then
    local ok, changes = pcall(json.decode, request.body)
    if not ok or type(changes) ~= "table" then return { status = 400, body = "a JSON object is expected\n" } end
    for field, value in pairs(changes) do state.profile[field] = value end
    -- Others read it without waking this one: kv.get("name", "users/ann").
    kv.put("name", tostring(state.profile.name))
  elseif request.method == "GET" then
    state.visits = state.visits + 1
  else
    return { status = 405, headers = { allow = "GET, PUT" } }
  end
  local shown = json.encode({ profile = state.profile, visits = state.visits })
  return { headers = { ["content-type"] = "application/json" }, body = shown .. "\n" }
end
