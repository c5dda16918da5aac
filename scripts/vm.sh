#!/usr/bin/env bash
# A stock Debian with its own kernel, systemd and cgroup v2, emulated by qemu (no KVM needed): to see Torpor work on what
# users have. Not part of CI: under emulation everything is 10 to 30 times slower.
#
#   vm.sh make         builds the disk (mmdebstrap, from this machine's own package sources)
#   vm.sh start        boots it in the background; returns when it takes commands
#   vm.sh push FILE…   copies files to the same absolute paths
#   vm.sh install BIN  installs this torpor program and packaging/torpor.service, as the guide says
#   vm.sh run COMMAND  runs a command there, as root (a test finds what was copied for it); its exit status
#   vm.sh test PACKAGE [OPTION…]
#                      builds the package's tests here (options as `--test faults` or `--lib`), copies and runs them there
#   vm.sh console      shows what the kernel and systemd wrote
#   vm.sh stop         shuts it down; the disk stays
#   vm.sh clean        stops it and removes everything
#
# Needs root and the packages qemu-system-x86, mmdebstrap, e2fsprogs and openssh-client.
# TORPOR_VM_DIR (/var/tmp/torpor-vm), _SUITE (trixie), _PORT (10022), _MEMORY (3G), _CPUS (2), _PACKAGES (more of them),
# _APPEND (kernel parameters).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
dir=${TORPOR_VM_DIR:-/var/tmp/torpor-vm}
port=${TORPOR_VM_PORT:-10022}
target=${CARGO_TARGET_DIR:-$here/target}
cache=${TORPOR_TEST_CACHE:-$target/test-cache}
# What tests read: without it they look for the programs under test in another place, and would make them.
environment="export TMPDIR=/var/tmp CARGO_TARGET_DIR='$target' TORPOR_TEST_CACHE='$cache'"
# How long a boot may take, in seconds.
patience=600

fail() { echo "vm: $*" >&2; exit 1; }
need() { command -v "$1" >/dev/null || fail "$1 is missing: apt-get install $2"; }
running() { [ -s "$dir/pid" ] && kill -0 "$(cat "$dir/pid")" 2>/dev/null; }

remote() {
  ssh -i "$dir/key" -p "$port" -o BatchMode=yes -o ConnectTimeout=60 -o ServerAliveInterval=60 -o LogLevel=ERROR \
    -o UserKnownHostsFile="$dir/known_hosts" -o StrictHostKeyChecking=accept-new \
    -o ControlMaster=auto -o ControlPath="$dir/ssh" -o ControlPersist=3600 root@127.0.0.1 "$@"
}

# The address of Debian's archive that this machine's apt uses; empty elsewhere, and then mmdebstrap's default.
archive() { apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' 2>/dev/null | sort -u | head -n 1; }

make() {
  [ "$(id -u)" = 0 ] || fail "making a root file system needs root"
  need mmdebstrap mmdebstrap; need mke2fs e2fsprogs; need ssh-keygen openssh-client
  running && fail "it runs: stop it first"
  rm -rf "$dir"; mkdir -p "$dir"; chmod 700 "$dir"
  local packages=systemd-sysv,udev,dbus,linux-image-amd64,openssh-server,ca-certificates,nftables,iproute2,procps
  packages=$packages,curl,kmod,less,e2fsprogs,busybox-static,perl-base,python3-minimal,util-linux-extra${TORPOR_VM_PACKAGES:+,$TORPOR_VM_PACKAGES}
  local mirror; mirror=$(archive)
  mmdebstrap --quiet --variant=minbase --include="$packages" "${TORPOR_VM_SUITE:-trixie}" "$dir/root" ${mirror:+"$mirror"}
  ssh-keygen -q -t ed25519 -N '' -C torpor-vm -f "$dir/key"
  local root=$dir/root
  install -D -m 600 "$dir/key.pub" "$root/root/.ssh/authorized_keys"
  echo torpor-vm > "$root/etc/hostname"
  echo '127.0.0.1 localhost torpor-vm' > "$root/etc/hosts"
  echo '/dev/vda / ext4 defaults 0 1' > "$root/etc/fstab"
  printf '[Match]\nName=en*\n[Network]\nDHCP=yes\n' > "$root/etc/systemd/network/machine.network"
  mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
  ln -sf /usr/lib/systemd/system/systemd-networkd.service "$root/etc/systemd/system/multi-user.target.wants/"
  cp -L "$root"/boot/vmlinuz-* "$dir/kernel"; cp -L "$root"/boot/initrd.img-* "$dir/initrd"
  mke2fs -q -t ext4 -L root -d "$root" "$dir/disk" 8G
  rm -rf "$root"
  echo "vm: made $dir/disk; next: $0 start"
}

start() {
  need qemu-system-x86_64 qemu-system-x86; need ssh openssh-client
  [ -f "$dir/disk" ] || fail "there is no disk: $0 make"
  running && fail "it runs already, as process $(cat "$dir/pid")"
  local accelerator=tcg,thread=multi
  # The device alone is no proof: the processor must have it too.
  [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo && accelerator=kvm
  : > "$dir/console"
  qemu-system-x86_64 -accel "$accelerator" -cpu max -smp "${TORPOR_VM_CPUS:-2}" -m "${TORPOR_VM_MEMORY:-3G}" \
    -kernel "$dir/kernel" -initrd "$dir/initrd" \
    -append "root=/dev/vda rw console=ttyS0 systemd.show_status=1 ${TORPOR_VM_APPEND:-}" \
    -drive "file=$dir/disk,format=raw,if=virtio,cache=unsafe" -device virtio-rng-pci \
    -nic "user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:$port-:22" \
    -display none -serial "file:$dir/console" -monitor none -daemonize -pidfile "$dir/pid"
  local begun=$SECONDS
  until timeout 90 "$0" run true 2>/dev/null; do
    running || fail "it ended; its console: $dir/console"
    [ $((SECONDS - begun)) -lt $patience ] || fail "it takes no commands after $patience s; its console: $dir/console"
    sleep 2
  done
  echo "vm: took $((SECONDS - begun)) s to boot: $(remote 'uname -r; systemctl --version | head -n 1' | tr '\n' ' ')"
}

push() {
  [ $# -gt 0 ] || fail "push what?"
  local file; local -a files=()
  for file in "$@"; do files+=("$(realpath -s "$file")"); done
  tar -cP "${files[@]}" | remote 'tar -xP'
}

install_program() {
  [ -x "${1:-}" ] || fail "install which program?"
  remote 'cd /usr/local/bin && cat > .torpor && chmod 755 .torpor && mv .torpor torpor' < "$1"
  remote 'cat > /etc/systemd/system/torpor.service && systemctl daemon-reload' < "$here/packaging/torpor.service"
}

test_package() {
  [ $# -gt 0 ] || fail "test which package?"
  local package=$1 name built result=0
  shift
  cd "$here"
  cargo build --quiet --package torpor --package torpor-testkit
  built=$(cargo test --no-run --package "$package" "$@" 2>&1) || fail "$built"
  local -a binaries files
  mapfile -t binaries < <(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' <<< "$built" | xargs -r realpath)
  [ ${#binaries[@]} -gt 0 ] || fail "no tests: $built"
  mapfile -t files < <(find "$target/debug" -maxdepth 1 -type f -executable)
  push "${binaries[@]}" "${files[@]}"
  # The programs under test, once (gigabytes): TORPOR_VM_DIR/programs says that they are there. Their names depend on the
  # package sources of the machine that makes them.
  if [ ! -e "$dir/programs" ]; then
    cargo run --quiet --package torpor-testkit --bin servers
    remote 'rm -f /etc/apt/sources.list'
    mapfile -t files < <(find /etc/apt/sources.list /etc/apt/sources.list.d/{debian,ubuntu}.sources "$cache" -maxdepth 1 -type f)
    push "${files[@]}"
    touch "$dir/programs"
  fi
  for name in "${binaries[@]}"; do
    echo "vm: $name"
    remote "cd /var/tmp; $environment; '$name' --test-threads=2" || result=1
  done
  return $result
}

stop() {
  running || return 0
  local pid; pid=$(cat "$dir/pid")
  # The connection may be cut by the very thing that is asked for.
  remote 'systemctl poweroff' 2>/dev/null || true
  for _ in $(seq 120); do kill -0 "$pid" 2>/dev/null || { rm -f "$dir/pid" "$dir/ssh"; return 0; }; sleep 1; done
  echo "vm: it did not shut down in 120 s; ended" >&2
  kill "$pid"; rm -f "$dir/pid" "$dir/ssh"
}

command=${1:-}; [ $# -eq 0 ] || shift
case $command in
  make) make ;;
  start) start ;;
  push) push "$@" ;;
  install) install_program "$@" ;;
  run) remote "$environment; $*" ;;
  test) test_package "$@" ;;
  console) cat "$dir/console" ;;
  stop) stop ;;
  clean) stop; rm -rf "$dir" ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;;
esac
