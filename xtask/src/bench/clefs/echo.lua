-- Runs the program of the first argument, and answers numbers that come by the FIFO of the second one by the FIFO of the third one.
dofile(arg[1])
local from, to = io.open(arg[2], "r+"), io.open(arg[3], "r+")
for line in from:lines() do
  to:write(message(tonumber(line)), "\n")
  to:flush()
end
