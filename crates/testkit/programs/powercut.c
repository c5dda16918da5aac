// powercut MOUNT
// Makes an ext4 file system as it is after a power cut: nothing that was not synced reaches its device any more, not even its
// journal (EXT4_IOC_SHUTDOWN). It must be unmounted and mounted again after that.
#include <fcntl.h>
#include <sys/ioctl.h>
#include "common.h"

#define SHUTDOWN _IOR('X', 125, uint32_t)
#define NO_LOG_FLUSH 2

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int mount = NEED(open(argv[1], O_RDONLY | O_CLOEXEC | O_DIRECTORY));
    uint32_t how = NO_LOG_FLUSH;
    NEED(ioctl(mount, SHUTDOWN, &how));
    return 0;
}
