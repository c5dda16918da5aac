-- A counter for each user.
state = { n = 0 }

function message()
  state.n = state.n + 1
  return state.n
end

function http()
  return tostring(message())
end
