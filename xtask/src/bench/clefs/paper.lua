-- The program of Alto's figures 2 and 3: a string of 10 kB and 10,000 functions, each with a captured value.
text = ("x"):rep(10 * 1024)
functions = {}
for n = 1, 10000 do
  local captured = n
  functions[n] = function(more) return captured + more end
end

function message(n)
  last = functions[n % #functions + 1](n)
  return last
end
