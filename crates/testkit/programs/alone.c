// alone PROGRAM [ARGUMENT...]
// Becomes the program, in a session of its own and without any descriptors but the standard streams: nothing that whoever started it left open.
#include "common.h"

int main(int count, char **arguments) {
    if (count < 2) return 2;
    NEED(close_range(3, ~0U, 0));
    NEED(setsid());
    execvp(arguments[1], arguments + 1);
    DIE(arguments[1]);
}
