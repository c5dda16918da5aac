/*
 * crypto and base64: hashes, HMAC, comparison of secrets, and text for bytes. The work is done by libraries of Rust's, in src/digest.rs, which
 * declares the same functions.
 */
enum { MOST_DIGEST = 64, MOST_MESSAGE = 100 };

/* A string of Lua's. */
struct bytes {
  const char *at;
  size_t len;
};

size_t torpor_digest(int algorithm, const struct bytes *key, const struct bytes *bytes, const volatile uint32_t *spent, unsigned char *to);
int torpor_equal(const struct bytes *one, const struct bytes *other);
size_t torpor_base64_encode(int is_url, const struct bytes *bytes, char *to);
ptrdiff_t torpor_base64_decode(int is_url, const struct bytes *text, char *to, char *message);

/* Numbers of algorithms are places in here. */
static const char *const algorithms[] = {"sha256", "sha512", "sha1", NULL};
enum { SHA256, SHA512, SHA1 };

static struct bytes bytes_argument(lua_State *L, int index) {
  struct bytes bytes;
  bytes.at = luaL_checklstring(L, index, &bytes.len);
  return bytes;
}

/* The digest of the string argument `index`; behind it may be said that it is to be hexadecimal. */
static int push_digest(lua_State *L, int algorithm, const struct bytes *key, int index) {
  static const char *const formats[] = {"raw", "hex", NULL};
  static const char digits[] = "0123456789abcdef";
  unsigned char digest[MOST_DIGEST];
  struct bytes bytes = bytes_argument(L, index);
  int is_hex = luaL_checkoption(L, index + 1, "raw", formats);
  size_t len = torpor_digest(algorithm, key, &bytes, &torpor_arena(G(L))->spent, digest);
  torpor_check(L);
  if (!is_hex) {
    lua_pushlstring(L, (const char *)digest, len);
    return 1;
  }
  char hex[2 * MOST_DIGEST];
  for (size_t n = 0; n < len; n++) {
    hex[2 * n] = digits[digest[n] >> 4];
    hex[2 * n + 1] = digits[digest[n] & 15];
  }
  lua_pushlstring(L, hex, 2 * len);
  return 1;
}

static int crypto_sha256(lua_State *L) { return push_digest(L, SHA256, NULL, 1); }
static int crypto_sha512(lua_State *L) { return push_digest(L, SHA512, NULL, 1); }
static int crypto_sha1(lua_State *L) { return push_digest(L, SHA1, NULL, 1); }

/* crypto.hmac(algorithm, key, bytes [, "hex"]) */
static int crypto_hmac(lua_State *L) {
  int algorithm = luaL_checkoption(L, 1, NULL, algorithms);
  struct bytes key = bytes_argument(L, 2);
  return push_digest(L, algorithm, &key, 3);
}

/* crypto.equal(one, other) */
static int crypto_equal(lua_State *L) {
  struct bytes one = bytes_argument(L, 1), other = bytes_argument(L, 2);
  lua_pushboolean(L, torpor_equal(&one, &other));
  return 1;
}

static int is_url_argument(lua_State *L) {
  static const char *const alphabets[] = {"standard", "url", NULL};
  return luaL_checkoption(L, 2, "standard", alphabets);
}

/* base64.encode(bytes [, "url"]) */
static int base64_encode(lua_State *L) {
  struct bytes bytes = bytes_argument(L, 1);
  int is_url = is_url_argument(L);
  luaL_Buffer buffer;
  char *to = luaL_buffinitsize(L, &buffer, (bytes.len + 2) / 3 * 4);
  luaL_pushresultsize(&buffer, torpor_base64_encode(is_url, &bytes, to));
  return 1;
}

/* base64.decode(text [, "url"]) */
static int base64_decode(lua_State *L) {
  struct bytes text = bytes_argument(L, 1);
  int is_url = is_url_argument(L);
  char message[MOST_MESSAGE];
  luaL_Buffer buffer;
  char *to = luaL_buffinitsize(L, &buffer, (text.len + 3) / 4 * 3);
  ptrdiff_t len = torpor_base64_decode(is_url, &text, to, message);
  if (len < 0) return luaL_error(L, "invalid base64: %s", message);
  luaL_pushresultsize(&buffer, (size_t)len);
  return 1;
}

static const luaL_Reg crypto_functions[] = {
  {"sha256", crypto_sha256}, {"sha512", crypto_sha512}, {"sha1", crypto_sha1}, {"hmac", crypto_hmac}, {"equal", crypto_equal}, {NULL, NULL},
};

static const luaL_Reg base64_functions[] = {
  {"encode", base64_encode}, {"decode", base64_decode}, {NULL, NULL},
};

static int open_crypto(lua_State *L) {
  luaL_newlib(L, crypto_functions);
  return 1;
}

static int open_base64(lua_State *L) {
  luaL_newlib(L, base64_functions);
  return 1;
}
