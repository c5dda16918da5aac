/*
 * Limits of processor time.
 *
 * A timer of the thread ticks while it uses the processor (src/budget.rs). When a step has had its ticks, the signal's handler sets a hook on the
 * thread that runs, which is what lua_sethook is made for: the next instruction raises an error. pcall does not catch it where it can yield, and
 * where it cannot, the next instruction raises another one. Where C loops without running instructions, edits of build.rs look at `spent`.
 * What was ended so is not run again: its arena holds hooks, which are addresses of this process.
 */
static __thread struct torpor_arena *volatile running_arena;
static __thread lua_State *volatile running_thread;
static __thread volatile long ticks_left;

/* Needs no memory, and no handler of errors is called for it. */
static void torpor_out_of_time(lua_State *L) { luaD_throw(L, LUA_ERRMEM); }

static int torpor_is_spent(void) { return running_arena != NULL && running_arena->spent; }

static void spent_hook(lua_State *L, lua_Debug *ar) {
  (void)ar;
  torpor_out_of_time(L);
}

/* From here on `L` runs; NULL: nothing. Gives what ran before. */
static lua_State *now_runs(lua_State *L) {
  lua_State *before = running_thread;
  running_thread = NULL;
  running_arena = L != NULL ? torpor_arena(G(L)) : NULL;
  running_thread = L;
  if (L != NULL && running_arena->spent) lua_sethook(L, spent_hook, LUA_MASKCOUNT, 1);
  return before;
}

/* The next step of this thread may take so many ticks; 0: any number. */
void torpor_allow(long ticks) { ticks_left = ticks; }

/* Whether a step of this arena took more. */
int torpor_was_spent(const struct torpor_arena *arena) { return arena->spent != 0; }

/* Handles the signal of the timer. */
void torpor_tick(int signal) {
  (void)signal;
  lua_State *L = running_thread;
  if (L == NULL || ticks_left == 0 || --ticks_left > 0) return;
  running_arena->spent = 1;
  lua_sethook(L, spent_hook, LUA_MASKCOUNT, 1);
}
