# Mounts what a program needs in a root file system, and runs it there. Arguments: the root, the user, the command.
#
# The shell stays as process 1: a program may not be that (Postfix waits forever), and `unshare --kill-child` works by a parent-death
# signal, which the kernel forgets when a program changes its user.
set -e
root=$1 user=$2
shift 2
ip link set lo up
mkdir -p $root/dev $root/proc $root/tmp
mount -t proc proc $root/proc
mount -t tmpfs -o mode=755 tmpfs $root/dev
for device in null zero full random urandom; do
    touch $root/dev/$device
    mount --bind /dev/$device $root/dev/$device
done
ln -s /proc/self/fd $root/dev/fd
ln -s /proc/self/fd/1 $root/dev/stdout
ln -s /proc/self/fd/2 $root/dev/stderr
mkdir -m 1777 $root/dev/shm
mount -t tmpfs tmpfs $root/dev/shm
chroot --userspec=$user $root "$@" &
wait $!
