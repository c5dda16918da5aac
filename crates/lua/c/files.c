/*
 * Files of a state: a table in the registry, from normalised names to contents. They are values of Lua like all others, so that they sleep, move
 * and count as memory with the rest; the file system of the machine is not looked at.
 *
 *   registry[FILES]   "notes/today"  ->  userdata struct file  ->  user value: table of blocks, from 1
 *                     1              ->  number of the last temporary name
 *
 * Contents are in blocks, so that what is appended writes to few pages and copies nothing. Blocks never written to are not there: they read as
 * zeros. The first one is as small as its contents allow. A file that is removed lives on in its open handles (io.c).
 *
 * Whatever collects garbage may run finalizers, which are functions of the program and may write to the file: so a pointer to a block is not used
 * after that, and file_write collects none.
 */

#define FILES "files"

enum {
  FILE_BLOCK = 2048 - udatamemoffset(0),  /* a small block of the arena, header included */
  FILE_SMALLEST = 64,                     /* bytes of a first block */
  FILE_PATH = 1024,
  FILE_MOST = 1 << 30                     /* bytes of a file, most of which can only be zeros: an arena has less */
};

struct file {
  lua_Integer size;
};

/* A name within `path` without ".", ".." and needless slashes goes to `name`, of FILE_PATH bytes; gives its length, or -1 and sets errno. */
static int file_name(const char *path, size_t len, char *name) {
  int at = 0;
  errno = len == 0 ? ENOENT : len > FILE_PATH ? ENAMETOOLONG : memchr(path, 0, len) != NULL ? EINVAL : 0;
  if (errno != 0) return -1;
  for (const char *end = path + len; path < end;) {
    const char *slash = memchr(path, '/', (size_t)(end - path));
    int part = (int)((slash != NULL ? slash : end) - path);
    if (part == 2 && memcmp(path, "..", 2) == 0) {
      while (at > 0 && name[--at] != '/') {}
    } else if (part > 0 && !(part == 1 && *path == '.')) {
      if (at > 0) name[at++] = '/';
      memcpy(name + at, path, (size_t)part);
      at += part;
    }
    path += part + 1;
  }
  /* The root. */
  if (at == 0) errno = EISDIR;
  return at == 0 ? -1 : at;
}

/* Pushes the name of the path argument `index`; false, and errno, where it is none. */
static int push_file_name(lua_State *L, int index) {
  char name[FILE_PATH];
  size_t path_len;
  const char *path = luaL_checklstring(L, index, &path_len);
  int len = file_name(path, path_len, name);
  if (len < 0) return 0;
  lua_pushlstring(L, name, (size_t)len);
  return 1;
}

/* Pushes the table of files. */
static void push_files(lua_State *L) { luaL_getsubtable(L, LUA_REGISTRYINDEX, FILES); }

/* Pushes a file that is empty. */
static struct file *push_new_file(lua_State *L) {
  struct file *file = lua_newuserdatauv(L, sizeof *file, 1);
  file->size = 0;
  lua_newtable(L);
  lua_setiuservalue(L, -2, 1);
  return file;
}

/* Makes the file on the top empty. */
static void truncate_file(lua_State *L) {
  lua_newtable(L);
  lua_setiuservalue(L, -2, 1);
  ((struct file *)lua_touserdata(L, -1))->size = 0;
}

/* The bytes from `offset` to the end of the block or the file at `index`, whichever comes first: how many, and where. Allocates nothing. */
static size_t file_piece(lua_State *L, int index, lua_Integer offset, const char **piece) {
  static const char zeros[FILE_BLOCK];
  const struct file *file = lua_touserdata(L, index);
  if (file == NULL || offset >= file->size) return 0;
  lua_getiuservalue(L, index, 1);
  lua_rawgeti(L, -1, offset / FILE_BLOCK + 1);
  const char *block = lua_touserdata(L, -1);
  size_t within = (size_t)(offset % FILE_BLOCK), len = lua_rawlen(L, -1);
  lua_pop(L, 2);
  if (within >= len) {
    block = zeros;
    len = FILE_BLOCK;
  }
  lua_Integer left = file->size - offset;
  *piece = block + within;
  return (lua_Integer)(len - within) < left ? len - within : (size_t)left;
}

/* Pushes a block without collecting garbage. */
static char *push_block(lua_State *L, size_t size) {
  Udata *block = luaS_newudata(L, size, 0);
  setuvalue(L, s2v(L->top.p), block);
  api_incr_top(L);
  return getudatamem(block);
}

/* Room for `len` bytes from `within` block `number` on, of the file at `index`. */
static char *file_room(lua_State *L, int index, lua_Integer number, size_t within, size_t len) {
  lua_getiuservalue(L, index, 1);
  lua_rawgeti(L, -1, number);
  char *block = lua_touserdata(L, -1);
  size_t old = lua_rawlen(L, -1);
  if (within + len > old) {
    size_t size = FILE_BLOCK;
    if (number == 1) {
      for (size = FILE_SMALLEST; size < within + len; size *= 2) {}
      if (size > FILE_BLOCK) size = FILE_BLOCK;
    }
    char *larger = push_block(L, size);
    if (old > 0) memcpy(larger, block, old);
    memset(larger + old, 0, size - old);
    lua_rawseti(L, -3, number);
    block = larger;
  }
  lua_pop(L, 2);
  return block + within;
}

/* Writes to the file at `index`, from `*offset` on, which then is behind what was written. Gives 0 or an errno. */
static int file_write(lua_State *L, int index, lua_Integer *offset, const char *bytes, size_t len) {
  if (len > FILE_MOST || *offset > FILE_MOST - (lua_Integer)len) return EFBIG;
  while (len > 0) {
    torpor_check(L);
    size_t within = (size_t)(*offset % FILE_BLOCK);
    size_t part = len < FILE_BLOCK - within ? len : FILE_BLOCK - within;
    memcpy(file_room(L, index, *offset / FILE_BLOCK + 1, within, part), bytes, part);
    bytes += part;
    len -= part;
    *offset += (lua_Integer)part;
    struct file *file = lua_touserdata(L, index);
    if (file->size < *offset) file->size = *offset;
  }
  return 0;
}

/* os.remove(path) */
static int files_remove(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  if (!push_file_name(L, 1)) return luaL_fileresult(L, 0, path);
  push_files(L);
  lua_pushvalue(L, -2);
  errno = ENOENT;
  if (lua_rawget(L, -2) == LUA_TNIL) return luaL_fileresult(L, 0, path);
  lua_pushvalue(L, -3);
  lua_pushnil(L);
  lua_rawset(L, -4);
  return luaL_fileresult(L, 1, NULL);
}

/* os.rename(from, to) */
static int files_rename(lua_State *L) {
  luaL_checkstring(L, 2);
  if (!push_file_name(L, 1) || !push_file_name(L, 2)) return luaL_fileresult(L, 0, NULL);
  int from = lua_gettop(L) - 1;
  push_files(L);
  lua_pushvalue(L, from + 1);
  lua_pushvalue(L, from);
  errno = ENOENT;
  if (lua_rawget(L, -3) == LUA_TNIL) return luaL_fileresult(L, 0, NULL);
  lua_pushvalue(L, from);
  lua_pushnil(L);
  lua_rawset(L, -5);
  lua_rawset(L, -3);
  return luaL_fileresult(L, 1, NULL);
}

/* os.tmpname() */
static int files_tmpname(lua_State *L) {
  lua_settop(L, 0);
  push_files(L);
  lua_rawgeti(L, -1, 1);
  lua_Integer number = lua_tointeger(L, -1);
  do {
    torpor_check(L);
    lua_settop(L, 1);
    lua_pushfstring(L, "/tmp/lua_%I", ++number);
    lua_pushstring(L, lua_tostring(L, -1) + 1);
    lua_pushvalue(L, -1);
  } while (lua_rawget(L, 1) != LUA_TNIL);
  lua_pop(L, 1);
  push_new_file(L);
  lua_rawset(L, 1);
  lua_pushinteger(L, number);
  lua_rawseti(L, 1, 1);
  return 1;
}

/* io.files(): a table of sizes by name. */
static int files_list(lua_State *L) {
  push_files(L);
  lua_newtable(L);
  lua_pushnil(L);
  while (lua_next(L, -3)) {
    torpor_check(L);
    const struct file *file = lua_touserdata(L, -1);
    lua_pop(L, 1);
    if (file == NULL) continue;
    lua_pushvalue(L, -1);
    lua_pushinteger(L, file->size);
    lua_rawset(L, -4);
  }
  return 1;
}

/* os.getenv(name): there is no environment. */
static int no_environment(lua_State *L) {
  luaL_checkstring(L, 1);
  luaL_pushfail(L);
  return 1;
}
