/*
 * Lua in one translation unit, so that static functions have numbers (functions.h) and nothing is exported but the functions at the end.
 *
 * The sources lie where the build has put them, edited: see build.rs.
 */
#define LUA_CORE
#define LUA_LIB
#define ltable_c
#define lvm_c
#include "lprefix.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arena.h"
#include "luaconf.h"

#undef LUAI_FUNC
#undef LUAI_DDEC
#undef LUAI_DDEF
#undef LUA_API
#undef LUALIB_API
#undef LUAMOD_API
#define LUAI_FUNC static
#define LUAI_DDEC(def)
#define LUAI_DDEF static
#define LUA_API static
#define LUALIB_API static
#define LUAMOD_API static

/* Before each thread: a `struct thread` (coroutines.c). */
#undef LUA_EXTRASPACE
#define LUA_EXTRASPACE (4 * sizeof(void *))

/* Of the arena, never of an address or a time of this process. */
#define luai_makeseed(L) ((unsigned int)torpor_arena(G(L))->seed)
#define l_randomizePivot() (0x9e3779b9u)

#include "lua.h"
#include "functions.h"

#include "lzio.c"
#include "lctype.c"
#include "lopcodes.c"
#include "lmem.c"
#include "lundump.c"
#include "ldump.c"
#include "lstate.c"
#include "lgc.c"
#include "llex.c"
#include "lcode.c"
#include "lparser.c"
#include "ldebug.c"
#include "lfunc.c"
#include "lobject.c"
#include "ltm.c"
#include "lstring.c"
#include "ltable.c"
#include "ldo.c"
#include "lvm.c"
#include "lapi.c"
#include "lauxlib.c"
#include "lbaselib.c"
#include "lmathlib.c"
#include "loslib.c"
#include "lstrlib.c"
#include "ltablib.c"
#include "lutf8lib.c"

static_assert(sizeof(Node) == sizeof(((struct torpor_arena *)0)->dummy_node), "the node of empty tables");

#include "time.c"
#include "coroutines.c"
#include "values.c"
#include "requests.c"
#include "crypto.c"
#include "files.c"
#include "io.c"
#include "json.c"
#include "libraries.c"
#include "functions.c"
#include "host.c"
