/*
 * See functions.h.
 */
#define FUNCTION(name) ((lua_CFunction)(name))

static const lua_CFunction torpor_functions[] = {
  NULL,
  /* lbaselib.c */
  FUNCTION(luaopen_base), FUNCTION(luaB_assert), FUNCTION(luaB_collectgarbage), FUNCTION(luaB_dofile), FUNCTION(luaB_error),
  FUNCTION(luaB_getmetatable), FUNCTION(luaB_ipairs), FUNCTION(ipairsaux), FUNCTION(luaB_loadfile), FUNCTION(luaB_load),
  FUNCTION(luaB_next), FUNCTION(luaB_pairs), FUNCTION(pairscont), FUNCTION(luaB_pcall), FUNCTION(finishpcall), FUNCTION(luaB_print),
  FUNCTION(luaB_warn), FUNCTION(luaB_rawequal), FUNCTION(luaB_rawlen), FUNCTION(luaB_rawget), FUNCTION(luaB_rawset),
  FUNCTION(luaB_select), FUNCTION(luaB_setmetatable), FUNCTION(luaB_tonumber), FUNCTION(luaB_tostring), FUNCTION(luaB_type),
  FUNCTION(luaB_xpcall), FUNCTION(dofilecont),
  /* coroutines.c */
  FUNCTION(open_coroutine), FUNCTION(co_create), FUNCTION(co_resume), FUNCTION(co_resumed), FUNCTION(co_running), FUNCTION(co_status),
  FUNCTION(co_wrap), FUNCTION(co_wrapped), FUNCTION(co_wrap_resumed), FUNCTION(co_yield), FUNCTION(co_close), FUNCTION(co_isyieldable),
  FUNCTION(wait_for_host), FUNCTION(wait_answered),
  /* lauxlib.c */
  FUNCTION(boxgc),
  /* lmathlib.c */
  FUNCTION(luaopen_math), FUNCTION(math_random), FUNCTION(math_randomseed), FUNCTION(math_abs), FUNCTION(math_acos), FUNCTION(math_asin),
  FUNCTION(math_atan), FUNCTION(math_ceil), FUNCTION(math_cos), FUNCTION(math_deg), FUNCTION(math_exp), FUNCTION(math_toint),
  FUNCTION(math_floor), FUNCTION(math_fmod), FUNCTION(math_ult), FUNCTION(math_log), FUNCTION(math_max), FUNCTION(math_min),
  FUNCTION(math_modf), FUNCTION(math_rad), FUNCTION(math_sin), FUNCTION(math_sqrt), FUNCTION(math_tan), FUNCTION(math_type),
  /* loslib.c, libraries.c */
  FUNCTION(open_os), FUNCTION(os_clock), FUNCTION(os_date), FUNCTION(os_difftime), FUNCTION(os_time), FUNCTION(load_text),
  /* lstrlib.c */
  FUNCTION(luaopen_string), FUNCTION(arith_add), FUNCTION(arith_sub), FUNCTION(arith_mul), FUNCTION(arith_mod), FUNCTION(arith_pow),
  FUNCTION(arith_div), FUNCTION(arith_idiv), FUNCTION(arith_unm), FUNCTION(str_byte), FUNCTION(str_char), FUNCTION(str_dump),
  FUNCTION(str_find), FUNCTION(str_format), FUNCTION(gmatch), FUNCTION(gmatch_aux), FUNCTION(str_gsub), FUNCTION(str_len),
  FUNCTION(str_lower), FUNCTION(str_match), FUNCTION(str_rep), FUNCTION(str_reverse), FUNCTION(str_sub), FUNCTION(str_upper),
  FUNCTION(str_pack), FUNCTION(str_packsize), FUNCTION(str_unpack),
  /* ltablib.c */
  FUNCTION(luaopen_table), FUNCTION(tconcat), FUNCTION(tinsert), FUNCTION(tpack), FUNCTION(tunpack), FUNCTION(tremove), FUNCTION(tmove),
  FUNCTION(sort),
  /* lutf8lib.c */
  FUNCTION(luaopen_utf8), FUNCTION(byteoffset), FUNCTION(codepoint), FUNCTION(utfchar), FUNCTION(utflen), FUNCTION(iter_codes),
  FUNCTION(iter_auxlax), FUNCTION(iter_auxstrict),
  /* requests.c */
  FUNCTION(ask_host), FUNCTION(await_host), FUNCTION(await_answered), FUNCTION(print_to_host), FUNCTION(require_file),
  FUNCTION(require_answered), FUNCTION(required), FUNCTION(handle_messages), FUNCTION(next_message), FUNCTION(message_answered),
  FUNCTION(handle_text),
  /* json.c */
  FUNCTION(open_json), FUNCTION(json_encode), FUNCTION(json_decode), FUNCTION(json_array),
  /* crypto.c */
  FUNCTION(open_crypto), FUNCTION(crypto_sha256), FUNCTION(crypto_sha512), FUNCTION(crypto_sha1), FUNCTION(crypto_hmac),
  FUNCTION(crypto_equal), FUNCTION(open_base64), FUNCTION(base64_encode), FUNCTION(base64_decode),
  /* files.c, io.c */
  FUNCTION(files_remove), FUNCTION(files_rename), FUNCTION(files_tmpname), FUNCTION(files_list), FUNCTION(no_environment), FUNCTION(open_io),
  FUNCTION(io_open), FUNCTION(io_type), FUNCTION(io_lines), FUNCTION(next_line), FUNCTION(handle_read), FUNCTION(handle_write),
  FUNCTION(handle_lines), FUNCTION(handle_flush), FUNCTION(handle_seek), FUNCTION(handle_close), FUNCTION(handle_setvbuf), FUNCTION(handle_gc),
  FUNCTION(handle_tostring),
};

enum { FUNCTION_COUNT = sizeof(torpor_functions) / sizeof(*torpor_functions), SLOTS = 1024 };

/* Numbers by hash of the address; set once, before the first arena (`torpor_begin`). */
static uint16_t torpor_numbers[SLOTS];

static_assert(FUNCTION_COUNT * 4 < SLOTS, "many free slots");

static size_t slot_of(lua_CFunction function) {
  uint64_t hash = (uint64_t)(uintptr_t)function * 0x9e3779b97f4a7c15u;
  return hash >> 54;
}

static void number_functions(void) {
  for (size_t n = 1; n < FUNCTION_COUNT; n++) {
    size_t slot = slot_of(torpor_functions[n]);
    while (torpor_numbers[slot] != 0 && torpor_functions[torpor_numbers[slot]] != torpor_functions[n]) slot = (slot + 1) % SLOTS;
    /* Functions with the same instructions may have been merged: they get the number of the first. */
    if (torpor_numbers[slot] == 0) torpor_numbers[slot] = (uint16_t)n;
  }
}

lua_CFunction torpor_encoded(lua_CFunction function) {
  if (function == NULL) return NULL;
  for (size_t slot = slot_of(function); torpor_numbers[slot] != 0; slot = (slot + 1) % SLOTS) {
    if (torpor_functions[torpor_numbers[slot]] == function) return (lua_CFunction)(uintptr_t)torpor_numbers[slot];
  }
  fprintf(stderr, "a function of Lua that has no number\n");
  abort();
}

lua_CFunction torpor_decoded(lua_CFunction number) {
  uintptr_t n = (uintptr_t)number;
  /* Images are authenticated, yet a damaged one must not choose what is called. */
  if (n >= FUNCTION_COUNT) abort();
  return torpor_functions[n];
}
