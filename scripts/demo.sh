#!/usr/bin/env bash
# Shows the main job: an unmodified web server is deployed, falls asleep, and is woken by a request.
# KEEP=1 leaves it running.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${TORPOR_BIN:-${CARGO_TARGET_DIR:-target}/release}
home=${TORPOR_DEMO_DIR:-/tmp/torpor-demo}
port=${TORPOR_DEMO_PORT:-8080}
export TORPOR_SOCKET=$home/run/api.sock

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '  $ %s\n' "$*"; "$@" | sed 's/^/    /'; }
stat() { "$bin/torpor" stats web --json; }
field() { sed -n "s/.*\"$1\": *\([0-9][0-9]*\).*/\1/p" | head -n 1; }
# Milliseconds until the first byte of the answer.
ask() { curl -sf -o /dev/null --max-time 20 -w '%{time_starttransfer}' "http://127.0.0.1:$port/" | awk '{ printf "%.2f ms", $1 * 1000 }'; }
served() { curl -sf --max-time 20 "http://127.0.0.1:$port/server-status?auto" | awk '/^Total Accesses/ { print $3 }'; }

mkdir -p "$home"
cat > "$home/torpor.toml" <<CONFIG
instance = "demo"
data_dir = "$home/data"
run_dir = "$home/run"
[network]
v4_pool = "10.214.0.0/16"
v6_pool = "fd70:6465:6d6f::/64"
CONFIG
daemon=
finish() {
  status=$?
  if [ "${KEEP:-0}" = 1 ] && [ "$status" = 0 ]; then
    say "Left running. Look around:"
    echo "    export TORPOR_SOCKET=$TORPOR_SOCKET; $bin/torpor explain web"
    echo "  and take it down with: $bin/torpor rm -f web; $bin/torpor down"
    return
  fi
  [ "$status" = 0 ] || { echo "the demo failed; the daemon said:" >&2; tail -n 20 "$home/log" >&2; }
  "$bin/torpor" rm -f web >/dev/null 2>&1 || true
  "$bin/torpor" down >/dev/null 2>&1 || true
  if [ -n "$daemon" ]; then kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; fi
  rm -rf "$home"
}
trap finish EXIT

say "1. A web server from the distribution's package, in a tarball"
"$bin/servers" lighttpd "$home/web.tar"
ls -lh "$home/web.tar" | awk '{ print "    " $9 ", " $5 }'

say "2. Deploy it"
setsid "$bin/torpor" up --config "$home/torpor.toml" >"$home/log" 2>&1 &
daemon=$!
for _ in $(seq 100); do [ -S "$TORPOR_SOCKET" ] && break; sleep 0.1; done
show "$bin/torpor" run --name web -p "$port:80" --idle-after 2s "$home/web.tar" -- \
  /usr/sbin/lighttpd -D -f /etc/lighttpd/lighttpd.conf
curl -sf --retry 20 --retry-delay 0 --retry-connrefused -o /dev/null "http://127.0.0.1:$port/"
for _ in 1 2 3 4 5 6 7; do ask >/dev/null; done
before=$(served)
awake=$(stat | field private_bytes)
echo "    answers in $(ask); memory of its own: $((awake / 1024)) kB; requests served so far: $((before + 1))"

say "3. Nobody uses it for two seconds: it falls asleep"
for _ in $(seq 100); do "$bin/torpor" ps --json | grep -q '"dozing"' && break; sleep 0.2; done
show "$bin/torpor" ps
asleep=$(stat | field private_bytes)
echo "    memory of its own: $((awake / 1024)) kB before, $((asleep / 1024)) kB now"

say "4. A request wakes it where it stopped"
first=$(ask)
echo "    first byte after $first, asleep before"
echo "    first byte after $(ask), awake"
after=$(served)
echo "    requests served: $after, so its memory is the same one"
[ "$after" -gt "$before" ]
show "$bin/torpor" explain web
say "Done."
