// Preloaded into PostgreSQL, which refuses to run as root: it believes to be the user OWNER, who owns its data.
#include <sys/types.h>

uid_t getuid(void) { return OWNER; }
uid_t geteuid(void) { return OWNER; }
