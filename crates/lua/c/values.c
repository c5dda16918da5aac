/*
 * What passes between a program and its host.
 */
struct torpor_value {
  int64_t kind;  /* LUA_T…; LUA_TNUMBER: `integer` or, of kind KIND_FLOAT, `number`. From the host, a table says how many pairs follow
                    (`integer`); to the host, they are followed by KIND_END. KIND_HANDLE: see requests.c */
  union {
    int64_t integer;
    double number;
    struct {
      const char *bytes;
      size_t len;
    };
  };
};

enum { KIND_FLOAT = -2, KIND_END = -3, KIND_HANDLE = -4 };

/* Keys of the registry behind Lua's own. They are integers: to look for a string may need memory, and fail where nothing catches the error. */
enum {
  HANDLE = LUA_RIDX_LAST + 1,  /* the metatable of handles */
  HANDLES,                     /* handles by number, weak; both are made with the first handle */
  TASKS,                       /* tasks by number */
  SPARE                        /* the thread of a task that has ended, for the next one, unless its stack has become large */
};

/* Tables in tables that the host gets. */
enum { MOST_DEPTH = 16 };

struct torpor_step {
  int64_t status;
  lua_State *at;
  int64_t count;
};

static void push_handle(lua_State *L, int64_t number);
static int is_handle(lua_State *L, int index, int64_t *number);

/* Calls `function`, which may raise errors: then the error is on the stack instead of what it has pushed. */
static int protected(lua_State *L, Pfunc function, void *context) {
  return luaD_pcall(L, function, context, savestack(L, L->top.p), 0);
}

/* Pushes a value, and gives what follows it. */
static const struct torpor_value *push_value(lua_State *L, const struct torpor_value *value) {
  int64_t pairs = value->integer;
  switch (value->kind) {
    case LUA_TBOOLEAN: lua_pushboolean(L, value->integer != 0); break;
    case LUA_TNUMBER: lua_pushinteger(L, value->integer); break;
    case KIND_FLOAT: lua_pushnumber(L, value->number); break;
    case LUA_TSTRING: lua_pushlstring(L, value->bytes, value->len); break;
    case KIND_HANDLE:
      luaL_checkstack(L, 6, "handles");
      push_handle(L, value->integer);
      break;
    case LUA_TTABLE:
      luaL_checkstack(L, 4, "tables in tables");
      lua_newtable(L);
      value++;
      while (pairs-- > 0) {
        value = push_value(L, value);
        value = push_value(L, value);
        lua_rawset(L, -3);
      }
      return value;
    default: lua_pushnil(L);
  }
  return value + 1;
}

/* Takes a value of the host's; false: no more. */
typedef int (*torpor_visit)(void *context, const struct torpor_value *value);

static int visit_value(lua_State *at, int index, int depth, torpor_visit visit, void *context) {
  struct torpor_value value = {lua_type(at, index), {0}};
  switch (value.kind) {
    case LUA_TBOOLEAN: value.integer = lua_toboolean(at, index); break;
    case LUA_TNUMBER:
      if (lua_isinteger(at, index)) {
        value.integer = lua_tointeger(at, index);
      } else {
        value.kind = KIND_FLOAT;
        value.number = lua_tonumber(at, index);
      }
      break;
    case LUA_TSTRING: value.bytes = lua_tolstring(at, index, &value.len); break;
    case LUA_TTABLE:
      if (depth >= MOST_DEPTH || !lua_checkstack(at, 3)) return 0;
      index = lua_absindex(at, index);
      if (!visit(context, &value)) return 0;
      lua_pushnil(at);
      while (lua_next(at, index)) {
        if (!visit_value(at, -2, depth + 1, visit, context) || !visit_value(at, -1, depth + 1, visit, context)) return 0;
        lua_pop(at, 1);
      }
      value.kind = KIND_END;
      break;
    case LUA_TUSERDATA:
      if (is_handle(at, index, &value.integer)) value.kind = KIND_HANDLE;
      break;
    default: break;
  }
  return visit(context, &value);
}
