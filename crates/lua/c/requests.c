/*
 * What programs ask of their host, beside `wait`.
 *
 * A request is the name of an operation and its arguments. Some are answered at once, by a function of the host's (src/host.rs): these can be made
 * anywhere. Others wait; the host answers them with true and results, or false and an error, which is raised.
 *
 * A *handle* is an object of the host's, a number to it: for a program, a value with methods that are requests. For each number there is one
 * handle at most, so handles are keys of tables.
 */

struct torpor_reply {
  int64_t is_error;  /* the one value is an error message */
  const struct torpor_value *values;
  size_t count;
};

/* Of src/host.rs: answers a request; the values are valid until `torpor_replied`, which is called once for each request, the last one first. */
void torpor_ask(const struct torpor_step *request, struct torpor_reply *reply);
void torpor_replied(void);

/* The number of a handle; false if it is none. */
static int is_handle(lua_State *L, int index, int64_t *number) {
  if (lua_type(L, index) != LUA_TUSERDATA || !lua_checkstack(L, 2) || !lua_getmetatable(L, index)) return 0;
  int is = lua_rawgeti(L, LUA_REGISTRYINDEX, HANDLE) == LUA_TTABLE && lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  if (is) *number = *(int64_t *)lua_touserdata(L, index);
  return is;
}

static void push_reply(lua_State *L, void *context) {
  const struct torpor_reply *reply = context;
  const struct torpor_value *values = reply->values;
  luaL_checkstack(L, (int)reply->count + 1, "too many results");
  for (size_t n = 0; n < reply->count; n++) values = push_value(L, values);
}

/* Asks what is on the stack, from the bottom on; pushes the results. */
static int asked(lua_State *L) {
  struct torpor_step request = {LUA_OK, L, lua_gettop(L)};
  struct torpor_reply reply;
  torpor_ask(&request, &reply);
  int status = protected(L, push_reply, &reply);
  torpor_replied();
  if (status != LUA_OK) return lua_error(L);
  if (reply.is_error) {
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
    return lua_error(L);
  }
  return (int)reply.count;
}

/* Its upvalue is the operation. */
static int ask_host(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  return asked(L);
}

static int await_answered(lua_State *L, int status, lua_KContext context) {
  (void)status, (void)context;
  if (lua_toboolean(L, 1)) return lua_gettop(L) - 1;
  lua_settop(L, 2);
  if (lua_type(L, 2) == LUA_TSTRING) {
    luaL_where(L, 1);
    lua_insert(L, 2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

/* Waits for the answer to what is on the stack; `k` finds it there, and nothing else. */
static int awaited(lua_State *L, lua_KFunction k) {
  struct torpor_arena *arena = torpor_arena(G(L));
  if (arena->nested > 0 || !lua_isyieldable(L)) return luaL_error(L, "cannot wait within %s", what_cannot_wait(L));
  arena->request = TORPOR_WAIT;
  return lua_yieldk(L, lua_gettop(L), 0, k);
}

/* Its upvalue is the operation. */
static int await_host(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  return awaited(L, await_answered);
}

static int print_to_host(lua_State *L) {
  int count = lua_gettop(L);
  luaL_Buffer text;
  luaL_buffinit(L, &text);
  for (int n = 1; n <= count; n++) {
    if (n > 1) luaL_addchar(&text, '\t');
    luaL_tolstring(L, n, NULL);
    luaL_addvalue(&text);
  }
  luaL_pushresult(&text);
  lua_replace(L, 1);
  lua_settop(L, 1);
  lua_pushliteral(L, "print");
  lua_insert(L, 1);
  asked(L);
  return 0;
}

static int required(lua_State *L, int status, lua_KContext context) {
  (void)status, (void)context;
  /* Its name, and what the file has returned. */
  if (lua_isnil(L, 2)) {
    lua_settop(L, 1);
    lua_pushboolean(L, 1);
  }
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_pushvalue(L, 1);
  lua_pushvalue(L, 2);
  lua_rawset(L, -3);
  lua_settop(L, 2);
  return 1;
}

static int require_answered(lua_State *L, int status, lua_KContext context) {
  (void)status, (void)context;
  /* true, the name, the text; or false and an error. */
  if (!lua_toboolean(L, 1)) return await_answered(L, status, context);
  size_t len;
  const char *text = luaL_checklstring(L, 3, &len);
  const char *name = lua_pushfstring(L, "@%s", luaL_checkstring(L, 2));
  if (luaL_loadbufferx(L, text, len, name, "t") != LUA_OK) return lua_error(L);
  lua_replace(L, 1);
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  lua_insert(L, 1);
  lua_callk(L, 1, 1, 0, required);
  return required(L, LUA_OK, 0);
}

/* require(name): runs a file of the class once, and gives what it has returned. */
static int require_file(lua_State *L) {
  luaL_checkstring(L, 1);
  lua_settop(L, 1);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_pushvalue(L, 1);
  if (lua_rawget(L, -2) != LUA_TNIL) return 1;
  lua_settop(L, 1);
  lua_pushliteral(L, "require");
  lua_insert(L, 1);
  return awaited(L, require_answered);
}

static int message_answered(lua_State *L, int status, lua_KContext context) {
  if (!lua_toboolean(L, 1)) return await_answered(L, status, context);
  lua_settop(L, 2);
  return 1;
}

/* What `handle:messages()` gives: the next message, and nil at the end. */
static int next_message(lua_State *L) {
  lua_settop(L, 1);
  lua_pushliteral(L, "receive");
  lua_insert(L, 1);
  return awaited(L, message_answered);
}

static int handle_messages(lua_State *L) {
  int64_t number;
  luaL_argexpected(L, is_handle(L, 1, &number), 1, "handle");
  lua_settop(L, 1);
  lua_pushcfunction(L, next_message);
  lua_insert(L, 1);
  return 2;
}

static int handle_text(lua_State *L) {
  int64_t number;
  luaL_argexpected(L, is_handle(L, 1, &number), 1, "handle");
  lua_pushfstring(L, "handle: %I", (LUAI_UACINT)number);
  return 1;
}

/* A function of a table, for the operation of this name. */
static void set_request(lua_State *L, const char *name, const char *operation, lua_CFunction function) {
  lua_pushstring(L, operation);
  lua_pushcclosure(L, function, 1);
  lua_setfield(L, -2, name);
}

static void make_handles(lua_State *L) {
  lua_createtable(L, 0, 4);
  lua_createtable(L, 0, 4);
  set_request(L, "send", "handle.send", ask_host);
  set_request(L, "close", "handle.close", ask_host);
  set_request(L, "receive", "receive", await_host);
  lua_pushcfunction(L, handle_messages);
  lua_setfield(L, -2, "messages");
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, handle_text);
  lua_setfield(L, -2, "__tostring");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_rawseti(L, LUA_REGISTRYINDEX, HANDLE);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawseti(L, LUA_REGISTRYINDEX, HANDLES);
}

/* Pushes the handle of a number. Needs six slots. */
static void push_handle(lua_State *L, int64_t number) {
  if (lua_rawgeti(L, LUA_REGISTRYINDEX, HANDLES) != LUA_TTABLE) {
    lua_pop(L, 1);
    make_handles(L);
    lua_rawgeti(L, LUA_REGISTRYINDEX, HANDLES);
  }
  if (lua_rawgeti(L, -1, number) == LUA_TNIL) {
    lua_pop(L, 1);
    *(int64_t *)lua_newuserdatauv(L, sizeof(int64_t), 0) = number;
    lua_rawgeti(L, LUA_REGISTRYINDEX, HANDLE);
    lua_setmetatable(L, -2);
    lua_pushvalue(L, -1);
    lua_rawseti(L, -3, number);
  }
  lua_remove(L, -2);
}

static void open_requests(lua_State *L) {
  lua_pushglobaltable(L);
  set_request(L, "sleep", "sleep", await_host);
  set_request(L, "call", "call", await_host);
  set_request(L, "fetch", "fetch", await_host);
  set_request(L, "send", "send", ask_host);
  set_request(L, "alarm", "alarm", ask_host);
  set_request(L, "now", "now", ask_host);
  lua_createtable(L, 0, 4);
  set_request(L, "get", "kv.get", ask_host);
  set_request(L, "put", "kv.put", ask_host);
  set_request(L, "list", "kv.list", ask_host);
  lua_setfield(L, -2, "kv");
  lua_pop(L, 1);
  lua_register(L, "print", print_to_host);
  lua_register(L, "require", require_file);
}
