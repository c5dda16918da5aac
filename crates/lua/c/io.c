/*
 * io: handles of files (files.c). They behave as those of stock Lua's liolib.c, down to the texts of errors; there is no standard input or output.
 *
 * A handle is a userdata: `struct handle`, with the file as its user value, which a closed one lets go of. In the functions of handles it is at
 * index 1 of the stack.
 */

enum { HANDLE_READS = 1, HANDLE_WRITES = 2, HANDLE_APPENDS = 4, HANDLE_OPEN = 8 };

struct handle {
  lua_Integer offset;
  int mode;
};

/* Of Lua's: the longest numeral that is read, and the most formats of `lines`. */
enum { HANDLE_NUMERAL = 200, HANDLE_FORMATS = 250 };

/* The handle at index 1. */
static struct handle *handle_argument(lua_State *L) { return luaL_checkudata(L, 1, LUA_FILEHANDLE); }

static struct handle *open_handle(lua_State *L) {
  struct handle *handle = handle_argument(L);
  if (!(handle->mode & HANDLE_OPEN)) luaL_error(L, "attempt to use a closed file");
  return handle;
}

static int handle_fails(lua_State *L, int error) {
  errno = error;
  return luaL_fileresult(L, 0, NULL);
}

/* Opening and closing */

static void push_handle_metatable(lua_State *L);

/* Pushes a handle of the file at the path argument 1. False, and errno, where there is none. */
static int push_file_handle(lua_State *L, const char *mode) {
  int is_read = *mode == 'r';
  if (!push_file_name(L, 1)) return 0;
  int name = lua_gettop(L);
  struct handle *handle = lua_newuserdatauv(L, sizeof *handle, 1);
  handle->offset = 0;
  handle->mode = 0;
  push_handle_metatable(L);
  lua_setmetatable(L, -2);
  push_files(L);
  lua_pushvalue(L, name);
  if (lua_rawget(L, -2) == LUA_TNIL) {
    if (is_read) {
      errno = ENOENT;
      return 0;
    }
    lua_pop(L, 1);
    push_new_file(L);
    lua_pushvalue(L, name);
    lua_pushvalue(L, -2);
    lua_rawset(L, -4);
  } else if (*mode == 'w') {
    truncate_file(L);
  }
  int both = mode[1] == '+';
  handle->mode = HANDLE_OPEN | (is_read || both ? HANDLE_READS : 0) | (!is_read || both ? HANDLE_WRITES : 0);
  if (*mode == 'a') {
    handle->mode |= HANDLE_APPENDS;
    if (!both) handle->offset = ((const struct file *)lua_touserdata(L, -1))->size;
  }
  lua_setiuservalue(L, -3, 1);
  lua_pop(L, 1);
  return 1;
}

/* io.open(path [, mode]) */
static int io_open(lua_State *L) {
  const char *path = luaL_checkstring(L, 1), *mode = luaL_optstring(L, 2, "r");
  int is_mode = *mode != 0 && strchr("rwa", *mode) != NULL;
  const char *rest = mode + (is_mode && mode[1] == '+' ? 2 : 1);
  luaL_argcheck(L, is_mode && rest[strspn(rest, "b")] == 0, 2, "invalid mode");
  return push_file_handle(L, mode) ? 1 : luaL_fileresult(L, 0, path);
}

static void close_handle(lua_State *L, struct handle *handle) {
  handle->mode = 0;
  lua_pushnil(L);
  lua_setiuservalue(L, 1, 1);
}

static int handle_close(lua_State *L) {
  close_handle(L, open_handle(L));
  return luaL_fileresult(L, 1, NULL);
}

/* __gc and __close */
static int handle_gc(lua_State *L) {
  close_handle(L, handle_argument(L));
  return 0;
}

/* io.type(value) */
static int io_type(lua_State *L) {
  luaL_checkany(L, 1);
  const struct handle *handle = luaL_testudata(L, 1, LUA_FILEHANDLE);
  if (handle == NULL) luaL_pushfail(L);
  else lua_pushstring(L, handle->mode & HANDLE_OPEN ? "file" : "closed file");
  return 1;
}

static int handle_tostring(lua_State *L) {
  const struct handle *handle = handle_argument(L);
  if (handle->mode & HANDLE_OPEN) lua_pushfstring(L, "file (%p)", (const void *)handle);
  else lua_pushliteral(L, "file (closed)");
  return 1;
}

/* Reading */

/* What is next in the file, as far as it is in one place; see file_piece. */
static size_t handle_piece(lua_State *L, const struct handle *handle, const char **piece) {
  lua_getiuservalue(L, 1, 1);
  size_t len = file_piece(L, lua_gettop(L), handle->offset, piece);
  lua_pop(L, 1);
  return len;
}

/* The byte that is next; -1: the end. */
static int handle_peek(lua_State *L, const struct handle *handle) {
  const char *piece;
  torpor_check(L);
  return handle_piece(L, handle, &piece) > 0 ? (unsigned char)*piece : -1;
}

struct numeral {
  lua_State *L;
  struct handle *handle;
  int len;
  char text[HANDLE_NUMERAL + 1];
};

/* Takes the next byte; false, and nothing is a number any more, where there is no room for it. */
static int numeral_take(struct numeral *numeral, int c) {
  if (numeral->len >= HANDLE_NUMERAL) {
    numeral->text[0] = 0;
    return 0;
  }
  numeral->text[numeral->len++] = (char)c;
  numeral->handle->offset++;
  return 1;
}

/* Takes the next byte if it is one of two. */
static int numeral_takes(struct numeral *numeral, const char *set) {
  int c = handle_peek(numeral->L, numeral->handle);
  return (c == set[0] || c == set[1]) && numeral_take(numeral, c);
}

static int numeral_digits(struct numeral *numeral, int is_hex) {
  for (int count = 0;; count++) {
    int c = handle_peek(numeral->L, numeral->handle);
    if (!(is_hex ? lisxdigit(c) : lisdigit(c)) || !numeral_take(numeral, c)) return count;
  }
}

/* As far as what is read can be the beginning of a numeral; whether it is one is seen then. */
static int read_number(lua_State *L, struct handle *handle) {
  struct numeral numeral = {L, handle, 0, {0}};
  int count = 0, is_hex = 0;
  while (lisspace(handle_peek(L, handle))) handle->offset++;
  numeral_takes(&numeral, "-+");
  if (numeral_takes(&numeral, "00")) {
    if (numeral_takes(&numeral, "xX")) is_hex = 1;
    else count = 1;
  }
  count += numeral_digits(&numeral, is_hex);
  if (numeral_takes(&numeral, "..")) count += numeral_digits(&numeral, is_hex);
  if (count > 0 && numeral_takes(&numeral, is_hex ? "pP" : "eE")) {
    numeral_takes(&numeral, "-+");
    numeral_digits(&numeral, 0);
  }
  numeral.text[numeral.len] = 0;
  if (lua_stringtonumber(L, numeral.text)) return 1;
  lua_pushnil(L);
  return 0;
}

static int read_line(lua_State *L, struct handle *handle, int chop) {
  luaL_Buffer buffer;
  const char *piece, *end = NULL;
  size_t len;
  luaL_buffinit(L, &buffer);
  do {
    torpor_check(L);
    char *to = luaL_prepbuffsize(&buffer, FILE_BLOCK);
    len = handle_piece(L, handle, &piece);
    if (len == 0) break;
    end = memchr(piece, '\n', len);
    if (end != NULL) len = (size_t)(end - piece) + 1;
    memcpy(to, piece, len);
    luaL_addsize(&buffer, len);
    handle->offset += (lua_Integer)len;
  } while (end == NULL);
  if (chop && end != NULL) luaL_buffsub(&buffer, 1);
  luaL_pushresult(&buffer);
  return end != NULL || lua_rawlen(L, -1) > 0;
}

/* At most `most` bytes. */
static int read_bytes(lua_State *L, struct handle *handle, size_t most) {
  lua_getiuservalue(L, 1, 1);
  const struct file *file = lua_touserdata(L, -1);
  size_t want = file->size > handle->offset ? (size_t)(file->size - handle->offset) : 0, len = 0;
  lua_pop(L, 1);
  if (want > most) want = most;
  luaL_Buffer buffer;
  char *to = luaL_buffinitsize(L, &buffer, want);
  while (len < want) {
    torpor_check(L);
    const char *piece;
    size_t some = handle_piece(L, handle, &piece);
    if (some == 0) break;
    if (some > want - len) some = want - len;
    memcpy(to + len, piece, some);
    len += some;
    handle->offset += (lua_Integer)some;
  }
  luaL_pushresultsize(&buffer, len);
  return len > 0;
}

static int read_format(lua_State *L, struct handle *handle, int arg) {
  if (lua_type(L, arg) == LUA_TNUMBER) {
    size_t most = (size_t)luaL_checkinteger(L, arg);
    if (most > 0) return read_bytes(L, handle, most);
    lua_pushliteral(L, "");
    return handle_peek(L, handle) >= 0;
  }
  const char *format = luaL_checkstring(L, arg);
  if (*format == '*') format++;
  switch (*format) {
    case 'n': return read_number(L, handle);
    case 'l': return read_line(L, handle, 1);
    case 'L': return read_line(L, handle, 0);
    case 'a': read_bytes(L, handle, SIZE_MAX); return 1;
    default: return luaL_argerror(L, arg, "invalid format");
  }
}

/* Reads what the arguments from 2 on say. */
static int read_formats(lua_State *L, struct handle *handle) {
  int last = lua_gettop(L), arg = 2, is_read = 1;
  if (!(handle->mode & HANDLE_READS)) return handle_fails(L, EBADF);
  if (last < 2) {
    is_read = read_line(L, handle, 1);
    arg = 3;
  } else {
    luaL_checkstack(L, last + LUA_MINSTACK, "too many arguments");
    for (; arg <= last && is_read; arg++) {
      /* A finalizer may have closed it. */
      if (!(handle->mode & HANDLE_OPEN)) return handle_fails(L, EBADF);
      is_read = read_format(L, handle, arg);
    }
  }
  if (!is_read) {
    lua_pop(L, 1);
    luaL_pushfail(L);
  }
  return arg - 2;
}

static int handle_read(lua_State *L) { return read_formats(L, open_handle(L)); }

/* The iterator of `lines`: its upvalues are the handle, how many formats there are, whether to close it at the end, and the formats. */
static int next_line(lua_State *L) {
  lua_settop(L, 0);
  lua_pushvalue(L, lua_upvalueindex(1));
  struct handle *handle = lua_touserdata(L, 1);
  int count = (int)lua_tointeger(L, lua_upvalueindex(2));
  if (!(handle->mode & HANDLE_OPEN)) return luaL_error(L, "file is already closed");
  luaL_checkstack(L, count, "too many arguments");
  for (int n = 1; n <= count; n++) lua_pushvalue(L, lua_upvalueindex(3 + n));
  int results = read_formats(L, handle);
  if (lua_toboolean(L, -results)) return results;
  if (results > 1) return luaL_error(L, "%s", lua_tostring(L, -results + 1));
  if (lua_toboolean(L, lua_upvalueindex(3))) close_handle(L, handle);
  return 0;
}

/* Pushes the iterator of the handle at index 1, with the formats behind it. */
static void push_lines(lua_State *L, int closes) {
  int count = lua_gettop(L) - 1;
  luaL_argcheck(L, count <= HANDLE_FORMATS, HANDLE_FORMATS + 2, "too many arguments");
  lua_pushvalue(L, 1);
  lua_pushinteger(L, count);
  lua_pushboolean(L, closes);
  lua_rotate(L, 2, 3);
  lua_pushcclosure(L, next_line, 3 + count);
}

static int handle_lines(lua_State *L) {
  open_handle(L);
  push_lines(L, 0);
  return 1;
}

/* io.lines(path, ...) */
static int io_lines(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  if (!push_file_handle(L, "r")) return luaL_error(L, "cannot open file '%s' (%s)", path, strerror(errno));
  lua_replace(L, 1);
  lua_pop(L, 1);
  push_lines(L, 1);
  lua_pushnil(L);
  lua_pushnil(L);
  lua_pushvalue(L, 1);
  return 4;
}

/* Writing */

static int handle_write(lua_State *L) {
  struct handle *handle = open_handle(L);
  int last = lua_gettop(L);
  for (int arg = 2; arg <= last; arg++) {
    char number[64];
    size_t len;
    const char *bytes = number;
    if (lua_isinteger(L, arg)) {
      len = (size_t)snprintf(number, sizeof number, LUA_INTEGER_FMT, (LUAI_UACINT)lua_tointeger(L, arg));
    } else if (lua_type(L, arg) == LUA_TNUMBER) {
      len = (size_t)snprintf(number, sizeof number, LUA_NUMBER_FMT, (LUAI_UACNUMBER)lua_tonumber(L, arg));
    } else {
      bytes = luaL_checklstring(L, arg, &len);
    }
    if (len == 0) continue;
    if (!(handle->mode & HANDLE_WRITES)) return handle_fails(L, EBADF);
    lua_getiuservalue(L, 1, 1);
    if (handle->mode & HANDLE_APPENDS) handle->offset = ((const struct file *)lua_touserdata(L, -1))->size;
    int error = file_write(L, lua_gettop(L), &handle->offset, bytes, len);
    if (error != 0) return handle_fails(L, error);
    lua_pop(L, 1);
  }
  lua_settop(L, 1);
  luaC_checkGC(L);
  return 1;
}

static int handle_seek(lua_State *L) {
  static const char *const origins[] = {"set", "cur", "end", NULL};
  struct handle *handle = open_handle(L);
  int origin = luaL_checkoption(L, 2, "cur", origins);
  lua_Integer by = luaL_optinteger(L, 3, 0), from = origin == 1 ? handle->offset : 0;
  if (origin == 2) {
    lua_getiuservalue(L, 1, 1);
    from = ((const struct file *)lua_touserdata(L, -1))->size;
  }
  /* Offsets are not negative, nor too large for their type. */
  if ((by > 0 && from > LUA_MAXINTEGER - by) || from + by < 0) return handle_fails(L, EINVAL);
  handle->offset = from + by;
  lua_pushinteger(L, handle->offset);
  return 1;
}

/* There is nothing to flush. */
static int handle_flush(lua_State *L) {
  open_handle(L);
  return luaL_fileresult(L, 1, NULL);
}

static int handle_setvbuf(lua_State *L) {
  static const char *const modes[] = {"no", "full", "line", NULL};
  open_handle(L);
  luaL_checkoption(L, 2, NULL, modes);
  luaL_optinteger(L, 3, 0);
  return luaL_fileresult(L, 1, NULL);
}

static const luaL_Reg handle_methods[] = {
  {"read", handle_read},   {"write", handle_write}, {"lines", handle_lines},     {"flush", handle_flush},
  {"seek", handle_seek},   {"close", handle_close}, {"setvbuf", handle_setvbuf}, {NULL, NULL},
};

static const luaL_Reg handle_metamethods[] = {
  {"__gc", handle_gc}, {"__close", handle_gc}, {"__tostring", handle_tostring}, {NULL, NULL},
};

static const luaL_Reg io_functions[] = {
  {"open", io_open}, {"lines", io_lines}, {"type", io_type}, {"close", handle_close}, {"files", files_list}, {NULL, NULL},
};

/* It is made when the first file is opened: most programs open none. */
static void push_handle_metatable(lua_State *L) {
  if (luaL_getmetatable(L, LUA_FILEHANDLE) != LUA_TNIL) return;
  lua_pop(L, 1);
  lua_newtable(L);
  luaL_setfuncs(L, handle_metamethods, 0);
  lua_pushliteral(L, LUA_FILEHANDLE);
  lua_setfield(L, -2, "__name");
  luaL_newlib(L, handle_methods);
  lua_setfield(L, -2, "__index");
  /* Last, so that nobody finds half of one for want of memory. */
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, LUA_FILEHANDLE);
}

static int open_io(lua_State *L) {
  luaL_newlib(L, io_functions);
  return 1;
}
