/*
 * What programs find: the libraries of Lua without what reaches out of the arena, and some of our own. `debug` and `package` are not there; `io` and `os`
 * know only the files of the state.
 */

/* load, of text only: a forged binary chunk can do anything to the memory of its process. */
static int load_text(lua_State *L) {
  lua_settop(L, lua_gettop(L) < 3 ? 3 : lua_gettop(L));
  lua_pushliteral(L, "t");
  lua_replace(L, 3);
  return luaB_load(L);
}

static const luaL_Reg removed_of_base[] = {
  {"dofile", NULL}, {"loadfile", NULL}, {"warn", NULL}, {"print", NULL}, {NULL, NULL},
};

static const luaL_Reg os_functions[] = {
  {"clock", os_clock}, {"date", os_date}, {"difftime", os_difftime}, {"time", os_time},
  {"remove", files_remove}, {"rename", files_rename}, {"tmpname", files_tmpname}, {"getenv", no_environment}, {NULL, NULL},
};

static int open_os(lua_State *L) {
  luaL_newlib(L, os_functions);
  return 1;
}

static void remove_field(lua_State *L, const char *table, const char *name) {
  lua_getglobal(L, table);
  lua_pushnil(L);
  lua_setfield(L, -2, name);
  lua_pop(L, 1);
}

static void open_libraries(lua_State *L) {
  static const luaL_Reg libraries[] = {
    {LUA_GNAME, luaopen_base},       {LUA_COLIBNAME, open_coroutine},  {LUA_TABLIBNAME, luaopen_table}, {LUA_OSLIBNAME, open_os},
    {LUA_STRLIBNAME, luaopen_string}, {LUA_MATHLIBNAME, luaopen_math}, {LUA_UTF8LIBNAME, luaopen_utf8}, {"json", open_json},
    {"crypto", open_crypto},         {"base64", open_base64},          {LUA_IOLIBNAME, open_io},
    {NULL, NULL},
  };
  for (const luaL_Reg *library = libraries; library->name != NULL; library++) {
    luaL_requiref(L, library->name, library->func, 1);
    lua_pop(L, 1);
  }
  for (const luaL_Reg *removed = removed_of_base; removed->name != NULL; removed++) remove_field(L, LUA_GNAME, removed->name);
  remove_field(L, LUA_STRLIBNAME, "dump");
  lua_register(L, "load", load_text);
  lua_register(L, "wait", wait_for_host);
}
