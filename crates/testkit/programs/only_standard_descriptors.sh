# Executes its arguments with nothing open but the three standard descriptors. Run by `bash -c`, so that the shell itself has no
# script open.
for descriptor in /proc/self/fd/*; do
    number=${descriptor##*/}
    [ "$number" -gt 2 ] && eval "exec $number>&-"
done
exec "$@"
