#!/usr/bin/env bash
# Makes the machine ready to build (`setup.sh build`) or to test (`setup.sh test`): says what is missing, and installs
# Debian's packages where it can.
set -euo pipefail

fail() { echo "torpor: $*" >&2; exit 1; }

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail "this is $(uname -s) on $(uname -m); Torpor runs on Linux on x86-64"
kernel=$(uname -r); major=${kernel%%.*}; rest=${kernel#*.}; minor=${rest%%[!0-9]*}
[ "$major" -gt 6 ] || { [ "$major" -eq 6 ] && [ "$minor" -ge 7 ]; } || fail "Linux $kernel is too old; Torpor needs 6.7 or newer"
[ "$(id -u)" = 0 ] || fail "sandboxes need root; run this as root (sudo make …)"
[ -x "$HOME/.cargo/bin/cargo" ] && export PATH="$HOME/.cargo/bin:$PATH"
command -v cargo >/dev/null || fail "there is no Rust toolchain; install one as https://rustup.rs says, then try again"

packages=(gcc libc6-dev nftables iproute2)
[ "${1:-build}" = build ] || packages+=(mmdebstrap busybox-static skopeo docker-registry golang-go default-jdk-headless curl e2fsprogs)
missing=()
for package in "${packages[@]}"; do
  case $package in
    default-jdk-headless) command -v javac >/dev/null && continue ;;
    golang-go) command -v go >/dev/null && continue ;;
    nftables) command -v nft >/dev/null && continue ;;
    gcc | curl | mmdebstrap | skopeo) command -v "$package" >/dev/null && continue ;;
  esac
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || fail "missing: ${missing[*]}; install them with your distribution's package manager"
  echo "Installing ${missing[*]} …"
  # Servers among them must not be started on this machine.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' > $policy; chmod 755 $policy
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ "${1:-build}" != build ]; then
  # Plain trees are restored at their own pids, which must not be given to another test's process meanwhile.
  pids=$(cat /proc/sys/kernel/pid_max); enough=4194304
  if [ "$pids" -lt $enough ] && echo $enough > /proc/sys/kernel/pid_max 2>/dev/null; then
    echo "Raised kernel.pid_max from $pids to $enough, as systemd does: tests want the pids of ended processes back."
  elif [ "$pids" -lt $enough ]; then
    echo "kernel.pid_max is $pids and cannot be raised here: now and then a test may find a pid taken."
  fi
fi
