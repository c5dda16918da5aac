# Stands in for `torpor down --config DIRECTORY/torpor.toml`: ends the process whose id is in DIRECTORY/pid.
test "$1 $2" = 'down --config'
pid=$(cat "${3%/*}/pid")
kill "$pid"
while kill -0 "$pid" 2>/dev/null; do
    sleep 0.01
done
