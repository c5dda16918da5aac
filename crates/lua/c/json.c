/*
 * json: values of Lua as JSON text (RFC 8259), and back.
 *
 *   nil, json.null           null           decode gives json.null, so that it can be in tables
 *   integer                  123            a number without fraction and exponent that fits is an integer
 *   float                    1.0, 1e+100    the fewest of 15 to 17 digits that give the same number back; infinities and NaN are errors
 *   table with keys 1..n     [...]          in this order
 *   table with strings       {...}          in the order of `next`; any other key is an error
 *   empty table              {}             [] where json.array has marked it, as decode does
 *
 * Tables are read without metamethods. Values are at most JSON_DEPTH tables deep, which bounds the C stack and finds cycles. The text that is
 * made is in a luaL_Buffer below all values that are being visited.
 */

enum { JSON_DEPTH = 128 };

/* The metatable of tables that are arrays, even if empty: in the registry, from the first use on. */
#define JSON_ARRAY "json.array"

/* Pushes it. */
static void json_array_metatable(lua_State *L) {
  if (luaL_getmetatable(L, JSON_ARRAY) != LUA_TNIL) return;
  lua_pop(L, 1);
  luaL_newmetatable(L, JSON_ARRAY);
}

/* Marks the table on the top. */
static void json_mark(lua_State *L) {
  json_array_metatable(L);
  lua_setmetatable(L, -2);
}

static int json_is_marked(lua_State *L, int index) {
  if (!lua_getmetatable(L, index)) return 0;
  luaL_getmetatable(L, JSON_ARRAY);
  int is = !lua_isnil(L, -1) && lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return is;
}

/* json.array([table]): marks a table as an array, and returns it. */
static int json_array(lua_State *L) {
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_newtable(L);
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  if (json_is_marked(L, 1)) return 1;
  luaL_argcheck(L, !lua_getmetatable(L, 1), 1, "it has a metatable");
  json_mark(L);
  return 1;
}

/* Encoding */

struct json_writer {
  luaL_Buffer buffer;
  int box;  /* where the buffer is on the stack */
};

/* Room for so many bytes. */
static char *json_room(struct json_writer *w, size_t bytes) { return prepbuffsize(&w->buffer, bytes, w->box); }

static void json_add(struct json_writer *w, const char *bytes, size_t len) {
  memcpy(json_room(w, len), bytes, len);
  luaL_addsize(&w->buffer, len);
}

static void json_add_char(struct json_writer *w, char c) {
  *json_room(w, 1) = c;
  luaL_addsize(&w->buffer, 1);
}

/* What follows a backslash, by byte; 'u': its number; 0: the byte stands for itself. */
static const char json_escapes[256] = {
  'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'b', 't', 'n', 'u', 'f', 'r', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u',
  'u', 'u', 'u', 'u', ['"'] = '"', ['\\'] = '\\',
};

static void json_write_string(lua_State *L, struct json_writer *w, int index) {
  static const char digits[] = "0123456789abcdef";
  size_t len;
  const char *at = lua_tolstring(L, index, &len), *end = at + len;
  json_add_char(w, '"');
  while (at < end) {
    const char *plain = at;
    while (at < end && !json_escapes[(unsigned char)*at]) at++;
    json_add(w, plain, (size_t)(at - plain));
    if (at == end) break;
    torpor_check(L);
    unsigned char c = (unsigned char)*at++;
    char escape[] = {'\\', json_escapes[c], '0', '0', digits[c >> 4], digits[c & 15]};
    json_add(w, escape, escape[1] == 'u' ? 6 : 2);
  }
  json_add_char(w, '"');
}

static void json_write_integer(struct json_writer *w, lua_Integer integer) {
  char digits[24], *at = digits + sizeof digits;
  lua_Unsigned left = integer < 0 ? 0 - (lua_Unsigned)integer : (lua_Unsigned)integer;
  do {
    *--at = (char)('0' + left % 10);
    left /= 10;
  } while (left > 0);
  if (integer < 0) *--at = '-';
  json_add(w, at, (size_t)(digits + sizeof digits - at));
}

static void json_write_float(lua_State *L, struct json_writer *w, lua_Number number) {
  if (!isfinite(number)) luaL_error(L, "cannot encode the number %f: JSON has none such", number);
  char text[40];
  int len = 0;
  for (int precision = 15; precision <= 17; precision++) {
    len = snprintf(text, sizeof text - 2, "%.*g", precision, number);
    if (strtod(text, NULL) == number) break;
  }
  /* What looks like an integer would be one when it is decoded. */
  if (strpbrk(text, ".e") == NULL) len += sprintf(text + len, ".0");
  json_add(w, text, (size_t)len);
}

static void json_write(lua_State *L, struct json_writer *w, int depth);

/* Says that a table cannot have the key at -2, behind which is its value. */
static int json_wrong_key(lua_State *L, const char *why) {
  switch (lua_type(L, -2)) {
    case LUA_TSTRING: return luaL_error(L, "cannot encode a table with the key '%s': %s", lua_tostring(L, -2), why);
    case LUA_TNUMBER:
      if (lua_isinteger(L, -2)) return luaL_error(L, "cannot encode a table with the key %I: %s", lua_tointeger(L, -2), why);
      return luaL_error(L, "cannot encode a table with the key %f: %s", lua_tonumber(L, -2), why);
    default: return luaL_error(L, "cannot encode a table with a key that is a %s: %s", luaL_typename(L, -2), why);
  }
}

/* From the pair on the top on: there are string keys only. */
static void json_write_object(lua_State *L, struct json_writer *w, int table, int depth) {
  char before = '{';
  do {
    if (lua_type(L, -2) != LUA_TSTRING) json_wrong_key(L, "keys of an object are strings");
    json_add_char(w, before);
    before = ',';
    json_write_string(L, w, -2);
    json_add_char(w, ':');
    json_write(L, w, depth);
    lua_pop(L, 1);
  } while (lua_next(L, table));
  json_add_char(w, '}');
}

/* From the pair on the top on: the keys are 1 to n. `next` gives most of them in this order; how many follow in some other one is counted. */
static void json_write_array(lua_State *L, struct json_writer *w, int table, int depth) {
  lua_Integer n = 0;
  char before = '[';
  do {
    if (!lua_isinteger(L, -2)) json_wrong_key(L, "others are integers, as in an array");
    if (lua_tointeger(L, -2) != n + 1) break;
    n++;
    json_add_char(w, before);
    before = ',';
    json_write(L, w, depth);
    lua_pop(L, 1);
    if (!lua_next(L, table)) {
      json_add_char(w, ']');
      return;
    }
  } while (1);
  lua_Integer count = n, largest = n;
  do {
    torpor_check(L);
    if (!lua_isinteger(L, -2)) json_wrong_key(L, "others are integers, as in an array");
    lua_Integer key = lua_tointeger(L, -2);
    if (key < 1) json_wrong_key(L, "keys of an array are 1 to n");
    if (key > largest) largest = key;
    count++;
    lua_pop(L, 1);
  } while (lua_next(L, table));
  if (count != largest) {
    lua_pushinteger(L, largest);
    lua_pushnil(L);
    json_wrong_key(L, "keys of an array are 1 to n, and some are missing");
  }
  for (n++; n <= count; n++) {
    lua_rawgeti(L, table, n);
    json_add_char(w, before);
    before = ',';
    json_write(L, w, depth);
    lua_pop(L, 1);
  }
  json_add_char(w, ']');
}

static void json_write_table(lua_State *L, struct json_writer *w, int depth) {
  if (depth > JSON_DEPTH) luaL_error(L, "cannot encode tables that are more than %d deep, or contain themselves", JSON_DEPTH);
  /* For two pairs of table, key and value, a new box and its metatable, and an error. */
  luaL_checkstack(L, 12, NULL);
  int table = lua_gettop(L);
  lua_pushnil(L);
  if (!lua_next(L, table)) {
    json_add(w, json_is_marked(L, table) ? "[]" : "{}", 2);
  } else if (lua_type(L, -2) != LUA_TSTRING) {
    if (lua_type(L, -2) != LUA_TNUMBER) json_wrong_key(L, "keys of an object are strings");
    json_write_array(L, w, table, depth);
  } else {
    if (json_is_marked(L, table)) json_wrong_key(L, "json.array has marked it as an array");
    json_write_object(L, w, table, depth);
  }
}

/* Writes the value on the top, and leaves it there; it is within `depth` tables. */
static void json_write(lua_State *L, struct json_writer *w, int depth) {
  torpor_check(L);
  switch (lua_type(L, -1)) {
    case LUA_TNIL: json_add(w, "null", 4); break;
    case LUA_TBOOLEAN:
      if (lua_toboolean(L, -1)) json_add(w, "true", 4);
      else json_add(w, "false", 5);
      break;
    case LUA_TNUMBER:
      if (lua_isinteger(L, -1)) json_write_integer(w, lua_tointeger(L, -1));
      else json_write_float(L, w, lua_tonumber(L, -1));
      break;
    case LUA_TSTRING: json_write_string(L, w, -1); break;
    case LUA_TTABLE: json_write_table(L, w, depth + 1); break;
    case LUA_TLIGHTUSERDATA:
      if (lua_touserdata(L, -1) == NULL) {
        json_add(w, "null", 4);
        break;
      }
      /* fallthrough */
    default: luaL_error(L, "cannot encode a %s", luaL_typename(L, -1));
  }
}

/* json.encode(value) */
static int json_encode(lua_State *L) {
  luaL_checkany(L, 1);
  lua_settop(L, 1);
  struct json_writer w;
  luaL_buffinit(L, &w.buffer);
  w.box = lua_gettop(L);
  lua_pushvalue(L, 1);
  json_write(L, &w, 0);
  lua_pop(L, 1);
  luaL_pushresult(&w.buffer);
  return 1;
}

/* Decoding */

struct json_reader {
  lua_State *L;
  const char *begin;  /* a string of Lua's: behind `end` is a zero, where every scan stops */
  const char *at;
  const char *end;
};

static void json_read(struct json_reader *r, int depth);

/* Says what is wrong at `at`, as the number of a byte, from 1. */
static int json_error(struct json_reader *r, const char *at, const char *what) {
  size_t offset = (size_t)(at - r->begin) + 1;
  return luaL_error(r->L, "invalid JSON at byte %I: %s", (lua_Integer)offset, at == r->end ? "the text ends too early" : what);
}

static void json_skip_space(struct json_reader *r) {
  while (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t') r->at++;
}

/* The number of four hexadecimal digits, which are then behind. */
static unsigned long json_read_hex(struct json_reader *r) {
  unsigned long number = 0;
  for (int n = 0; n < 4; n++, r->at++) {
    if (!lisxdigit((unsigned char)*r->at)) json_error(r, r->at, "\\u is followed by four hexadecimal digits");
    number = number << 4 | (unsigned long)luaO_hexavalue((unsigned char)*r->at);
  }
  return number;
}

/* The character of \u…, of two where it is half of a pair. `at` is behind the u. */
static unsigned long json_read_code(struct json_reader *r) {
  const char *first = r->at - 2;
  unsigned long high = json_read_hex(r);
  if (high < 0xd800 || high > 0xdfff) return high;
  if (high <= 0xdbff && r->at[0] == '\\' && r->at[1] == 'u') {
    r->at += 2;
    unsigned long low = json_read_hex(r);
    if (low >= 0xdc00 && low <= 0xdfff) return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
  }
  json_error(r, first, "half of a surrogate pair");
  return 0;
}

/* A string with escapes: copies it from `begin` to `to`, which has room for as many bytes as the text has; gives what it wrote. */
static size_t json_unescape(struct json_reader *r, char *to) {
  char *start = to;
  for (;;) {
    const char *plain = r->at;
    while (!json_escapes[(unsigned char)*r->at]) r->at++;
    memcpy(to, plain, (size_t)(r->at - plain));
    to += r->at - plain;
    if (*r->at == '"') {
      r->at++;
      return (size_t)(to - start);
    }
    torpor_check(r->L);
    r->at++;
    char c = *r->at++;
    switch (c) {
      case '"': case '\\': case '/': *to++ = c; break;
      case 'b': *to++ = '\b'; break;
      case 'f': *to++ = '\f'; break;
      case 'n': *to++ = '\n'; break;
      case 'r': *to++ = '\r'; break;
      case 't': *to++ = '\t'; break;
      case 'u': {
        char utf8[UTF8BUFFSZ];
        size_t len = (size_t)luaO_utf8esc(utf8, json_read_code(r));
        memcpy(to, utf8 + UTF8BUFFSZ - len, len);
        to += len;
        break;
      }
      default: json_error(r, r->at - 1, "no escape is written so");
    }
  }
}

/* `at` is behind the quotation mark. Its buffer is not to be in the frame of each array. */
__attribute__((noinline)) static void json_read_string(struct json_reader *r) {
  const char *begin = r->at;
  int has_escapes = 0;
  /* Finds its end first, to know how much room it needs. */
  for (;; r->at++) {
    while (!json_escapes[(unsigned char)*r->at]) r->at++;
    if (*r->at == '"') break;
    if (*r->at != '\\') json_error(r, r->at, "a control character in a string");
    has_escapes = 1;
    r->at++;
    if (r->at == r->end) json_error(r, r->at, "");
  }
  size_t len = (size_t)(r->at - begin);
  if (!has_escapes) {
    r->at++;
    lua_pushlstring(r->L, begin, len);
    return;
  }
  luaL_Buffer buffer;
  char *to = luaL_buffinitsize(r->L, &buffer, len);
  r->at = begin;
  luaL_pushresultsize(&buffer, json_unescape(r, to));
}

/* Powers of ten that a float has exactly. */
static const double json_powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                     1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* Reads digits into `*mantissa`; gives how many. `*fits` becomes false where there are too many. */
static long json_read_digits(struct json_reader *r, lua_Unsigned *mantissa, int *fits) {
  const char *begin = r->at;
  for (; *r->at >= '0' && *r->at <= '9'; r->at++) {
    unsigned digit = (unsigned)(*r->at - '0');
    if (*mantissa > (UINT64_MAX - digit) / 10) *fits = 0;
    *mantissa = *mantissa * 10 + digit;
  }
  if (r->at == begin) json_error(r, r->at, "a number without digits");
  return (long)(r->at - begin);
}

static void json_read_number(struct json_reader *r) {
  const char *begin = r->at;
  lua_Unsigned mantissa = 0, exponent = 0;
  int fits = 1, is_integer = 1, is_negative = *r->at == '-', is_small = 1, below = 0;
  long fraction = 0;
  r->at += is_negative;
  int zero = *r->at == '0';
  if (json_read_digits(r, &mantissa, &fits) > 1 && zero) json_error(r, begin + is_negative, "a number that begins with 0");
  if (*r->at == '.') {
    is_integer = 0;
    r->at++;
    fraction = json_read_digits(r, &mantissa, &fits);
  }
  if (*r->at == 'e' || *r->at == 'E') {
    is_integer = 0;
    r->at++;
    below = *r->at == '-';
    if (*r->at == '+' || *r->at == '-') r->at++;
    json_read_digits(r, &exponent, &is_small);
  }
  if (is_integer && fits && mantissa <= (lua_Unsigned)LUA_MAXINTEGER + (unsigned)is_negative) {
    lua_pushinteger(r->L, (lua_Integer)(is_negative ? 0 - mantissa : mantissa));
    return;
  }
  lua_Number number;
  if (fits && is_small && mantissa < (1ull << 53) && exponent < 100 && fraction < 100) {
    long power = (below ? -(long)exponent : (long)exponent) - fraction;
    if (power >= -22 && power <= 22) {
      /* Both are exact, so the result is rounded once, as it should be. */
      number = power < 0 ? (lua_Number)mantissa / json_powers[-power] : (lua_Number)mantissa * json_powers[power];
      lua_pushnumber(r->L, is_negative ? -number : number);
      return;
    }
  }
  number = strtod(begin, NULL);
  if (!isfinite(number)) json_error(r, begin, "a number that is too large");
  lua_pushnumber(r->L, number);
}

static void json_read_array(struct json_reader *r, int depth) {
  lua_State *L = r->L;
  lua_newtable(L);
  json_skip_space(r);
  if (*r->at == ']') {
    r->at++;
    json_mark(L);
    return;
  }
  for (lua_Integer n = 1;; n++) {
    json_read(r, depth);
    lua_rawseti(L, -2, n);
    json_skip_space(r);
    if (*r->at == ']') break;
    if (*r->at != ',') json_error(r, r->at, "',' or ']' is expected");
    r->at++;
  }
  r->at++;
}

static void json_read_object(struct json_reader *r, int depth) {
  lua_State *L = r->L;
  lua_newtable(L);
  json_skip_space(r);
  if (*r->at == '}') {
    r->at++;
    return;
  }
  for (;;) {
    json_skip_space(r);
    if (*r->at != '"') json_error(r, r->at, "a key, which is a string, is expected");
    r->at++;
    json_read_string(r);
    json_skip_space(r);
    if (*r->at != ':') json_error(r, r->at, "':' is expected");
    r->at++;
    json_read(r, depth);
    lua_rawset(L, -3);
    json_skip_space(r);
    if (*r->at == '}') break;
    if (*r->at != ',') json_error(r, r->at, "',' or '}' is expected");
    r->at++;
  }
  r->at++;
}

/* Whether a word is next, which is then behind. */
static int json_read_word(struct json_reader *r, const char *word) {
  size_t len = strlen(word);
  if ((size_t)(r->end - r->at) < len || memcmp(r->at, word, len) != 0) return 0;
  r->at += len;
  return 1;
}

/* Pushes the value that is next; it is within `depth` arrays and objects. */
static void json_read(struct json_reader *r, int depth) {
  lua_State *L = r->L;
  torpor_check(L);
  json_skip_space(r);
  char c = *r->at;
  if (c == '"') {
    r->at++;
    json_read_string(r);
  } else if (c == '-' || (c >= '0' && c <= '9')) {
    json_read_number(r);
  } else if (c == '[' || c == '{') {
    if (depth == JSON_DEPTH) luaL_error(L, "JSON at byte %I is more than %d deep", (lua_Integer)(r->at - r->begin) + 1, JSON_DEPTH);
    luaL_checkstack(L, 8, NULL);
    r->at++;
    if (c == '[') json_read_array(r, depth + 1);
    else json_read_object(r, depth + 1);
  } else if (json_read_word(r, "true")) {
    lua_pushboolean(L, 1);
  } else if (json_read_word(r, "false")) {
    lua_pushboolean(L, 0);
  } else if (json_read_word(r, "null")) {
    lua_pushlightuserdata(L, NULL);
  } else {
    json_error(r, r->at, "a value is expected");
  }
}

/* json.decode(text) */
static int json_decode(lua_State *L) {
  size_t len;
  const char *text = luaL_checklstring(L, 1, &len);
  struct json_reader r = {L, text, text, text + len};
  lua_settop(L, 1);
  json_read(&r, 0);
  json_skip_space(&r);
  if (r.at != r.end) json_error(&r, r.at, "something behind the value");
  return 1;
}

static const luaL_Reg json_functions[] = {
  {"encode", json_encode}, {"decode", json_decode}, {"array", json_array}, {"null", NULL}, {NULL, NULL},
};

static int open_json(lua_State *L) {
  luaL_newlib(L, json_functions);
  lua_pushlightuserdata(L, NULL);
  lua_setfield(L, -2, "null");
  return 1;
}
