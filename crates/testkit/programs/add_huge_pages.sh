# Adds huge pages to the machine's pools, and takes them away again when standard input is closed. Arguments: BYTES:PAGES for each size.
#
# Says `ready`, or why not, in one line. Waits up to PATIENCE (seconds) for the machine-wide lock. A size that the machine has no pool
# for is passed over.
exec 9>>/run/lock/torpor-test-hugepages || exit 1
flock -w "$PATIENCE" 9 || { echo 'the lock is not given'; exit 1; }
pool() { echo "/sys/kernel/mm/hugepages/hugepages-$(($1 / 1024))kB/nr_hugepages"; }
before=
for wish; do
    file=$(pool "${wish%:*}")
    [ -w "$file" ] || continue
    number=$(cat "$file")
    before="$before $file:$number"
    echo $((number + ${wish#*:})) > "$file" || true
done
echo ready
cat > /dev/null
for old in $before; do echo "${old##*:}" > "${old%:*}"; done
