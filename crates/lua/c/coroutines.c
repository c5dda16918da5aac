/*
 * Coroutines that can wait for the host wherever they stand.
 *
 * In stock Lua, coroutine.resume calls lua_resume: the resumer waits on the C stack, and what the coroutine yields reaches the resumer. A
 * coroutine that waits for the host must be able to leave all of them behind, and nothing of it may stay on the C stack. So coroutine.resume
 * yields, too: `run` takes the request, runs the other coroutine, and hands its values to the resumer as those of the yield. Who resumed whom
 * is in the arena, before each thread.
 *
 * Within a C function that cannot yield (a comparator of table.sort, a finalizer), coroutines run by a `run` of their own, and cannot wait.
 */

enum { TASK_IS_KNOWN = 2 };

/* Before each lua_State, in the arena. */
struct thread {
  lua_State *from;    /* who resumed it and waits for it; NULL for the first of a task, or if it does not run */
  lua_State *to;      /* whom it has resumed and waits for */
  lua_State *waiter;  /* of the first of a task: who waits for the host; NULL if it has not begun */
  size_t is_task;     /* the first of a task, which coroutine functions leave alone; TASK_IS_KNOWN: the program has it as a value */
};

static_assert(sizeof(struct thread) == LUA_EXTRASPACE, "struct thread");

static struct thread *thread_of(lua_State *L) { return lua_getextraspace(L); }

enum { KEPT_CALLS = 32 };

static void torpor_shrink_calls(lua_State *L) {
  CallInfo *last = L->ci;
  for (int n = 0; n < KEPT_CALLS && last->next != NULL; n++) last = last->next;
  CallInfo *call = last->next;
  last->next = NULL;
  while (call != NULL) {
    CallInfo *next = call->next;
    luaM_free(L, call);
    L->nci--;
    call = next;
  }
}

/* Whether it runs, waits for another one or for the host, or runs handlers of its own while it is closed. */
static int is_active(lua_State *L, lua_State *co) {
  struct thread *t = thread_of(co);
  int runs_handlers = lua_status(co) == LUA_OK && co->ci != &co->base_ci;
  return co == L || t->from != NULL || t->to != NULL || t->is_task || runs_handlers;
}

static int is_dead(lua_State *co) {
  int status = lua_status(co);
  return status == LUA_OK ? lua_gettop(co) == 0 : status != LUA_YIELD;
}

/* Closes a coroutine, whose handlers run within the time of `L`. */
static int close_coroutine(lua_State *L, lua_State *co) {
  lua_State *before = now_runs(co);
  int status = lua_closethread(co, L);
  now_runs(before);
  torpor_check(L);
  return status;
}

/* Runs `co` and whom it resumes until `first` yields, ends or fails, or somebody waits for the host: that is `*at`, with results on its stack.
   Calls of C functions are counted from those of `caller` on. Raises no error. */
static int run(lua_State *co, lua_State *first, lua_State *caller, int nargs, lua_State **at, int *nresults) {
  struct torpor_arena *arena = torpor_arena(G(co));
  for (;;) {
    arena->request = TORPOR_NONE;
    lua_State *before = now_runs(co);
    int status = lua_resume(co, caller, nargs, nresults);
    now_runs(before);
    uint32_t request = status == LUA_YIELD ? arena->request : TORPOR_NONE;
    lua_State *target = arena->target;
    arena->request = TORPOR_NONE;
    arena->target = NULL;
    *at = co;
    if (request == TORPOR_WAIT) return LUA_YIELD;
    if (request == TORPOR_RESUME) {
      /* co_resume has made room. */
      lua_xmove(co, target, *nresults);
      thread_of(target)->from = co;
      thread_of(co)->to = target;
      nargs = *nresults;
      co = target;
      continue;
    }
    if (co == first || arena->spent) return status;
    lua_State *from = thread_of(co)->from;
    thread_of(co)->from = NULL;
    thread_of(from)->to = NULL;
    int is_error = status != LUA_OK && status != LUA_YIELD;
    int count = is_error ? 1 : *nresults;
    if (!lua_checkstack(from, count + 1)) {
      lua_pop(co, count);
      /* A C function always has room for some values. */
      lua_pushboolean(from, 0);
      setsvalue2s(from, from->top.p, G(from)->memerrmsg);
      api_incr_top(from);
      nargs = 2;
    } else {
      lua_pushboolean(from, !is_error);
      lua_xmove(co, from, count);
      nargs = count + 1;
    }
    co = from;
  }
}

static lua_State *thread_argument(lua_State *L) {
  lua_State *co = lua_tothread(L, 1);
  luaL_argexpected(L, co, 1, "thread");
  return co;
}

/* Resumes `co` with the topmost values, from within something that cannot yield. Pushes whether it went well, and results; gives their number. */
static int resume_here(lua_State *L, lua_State *co, int nargs) {
  struct torpor_arena *arena = torpor_arena(G(L));
  lua_State *at;
  int nresults;
  /* Here lua_resume would need memory for its error. */
  if (getCcalls(L) + 5 >= LUAI_MAXCCALLS) return luaL_error(L, "C stack overflow");
  lua_xmove(L, co, nargs);
  thread_of(co)->from = L;
  lua_State *before = thread_of(L)->to;
  thread_of(L)->to = co;
  arena->nested++;
  int status = run(co, co, L, nargs, &at, &nresults);
  arena->nested--;
  thread_of(L)->to = before;
  thread_of(co)->from = NULL;
  torpor_check(L);
  int is_error = status != LUA_OK && status != LUA_YIELD;
  int count = is_error ? 1 : nresults;
  if (!lua_checkstack(L, count + 1)) {
    lua_pop(co, count);
    return luaL_error(L, "too many results to resume");
  }
  lua_pushboolean(L, !is_error);
  lua_xmove(co, L, count);
  return count + 1;
}

/* Has `run` resume `co` with the topmost values; `k` gets whether it went well, and results, behind what was below. */
static int resume_from(lua_State *L, lua_State *co, int nargs, lua_KFunction k) {
  const char *why = NULL;
  if (is_active(L, co)) why = "cannot resume non-suspended coroutine";
  else if (is_dead(co)) why = "cannot resume dead coroutine";
  else if (!lua_checkstack(co, nargs)) why = "too many arguments to resume";
  if (why != NULL) {
    lua_pop(L, nargs);
    lua_pushboolean(L, 0);
    lua_pushstring(L, why);
    return k(L, LUA_OK, 0);
  }
  if (!lua_isyieldable(L)) {
    resume_here(L, co, nargs);
    return k(L, LUA_OK, 0);
  }
  struct torpor_arena *arena = torpor_arena(G(L));
  arena->request = TORPOR_RESUME;
  arena->target = co;
  return lua_yieldk(L, nargs, 0, k);
}

/* Behind the coroutine: all is as it should be returned. */
static int co_resumed(lua_State *L, int status, lua_KContext context) {
  (void)status, (void)context;
  return lua_gettop(L) - 1;
}

static int co_resume(lua_State *L) {
  lua_State *co = thread_argument(L);
  return resume_from(L, co, lua_gettop(L) - 1, co_resumed);
}

static int co_wrap_resumed(lua_State *L, int status, lua_KContext context) {
  (void)status, (void)context;
  if (lua_toboolean(L, 1)) return lua_gettop(L) - 1;
  lua_State *co = lua_tothread(L, lua_upvalueindex(1));
  int ended = lua_status(co);
  if (ended != LUA_OK && ended != LUA_YIELD) {
    ended = close_coroutine(L, co);
    if (ended != LUA_OK) lua_xmove(co, L, 1);
  }
  if (ended != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING) {
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

static int co_wrapped(lua_State *L) {
  return resume_from(L, lua_tothread(L, lua_upvalueindex(1)), lua_gettop(L), co_wrap_resumed);
}

static int co_create(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_State *co = lua_newthread(L);
  memset(lua_getextraspace(co), 0, LUA_EXTRASPACE);
  lua_pushvalue(L, 1);
  lua_xmove(L, co, 1);
  return 1;
}

static int co_wrap(lua_State *L) {
  co_create(L);
  lua_pushcclosure(L, co_wrapped, 1);
  return 1;
}

static int co_yield(lua_State *L) {
  if (lua_isyieldable(L) && thread_of(L)->from == NULL) return luaL_error(L, "attempt to yield from outside a coroutine");
  return lua_yield(L, lua_gettop(L));
}

static const char *co_state(lua_State *L, lua_State *co) {
  if (co == L) return "running";
  if (is_active(L, co)) return "normal";
  return is_dead(co) ? "dead" : "suspended";
}

static int co_status(lua_State *L) {
  lua_pushstring(L, co_state(L, thread_argument(L)));
  return 1;
}

static int co_isyieldable(lua_State *L) {
  lua_State *co = lua_isnone(L, 1) ? L : thread_argument(L);
  lua_pushboolean(L, lua_isyieldable(co) && !thread_of(co)->is_task);
  return 1;
}

static int co_running(lua_State *L) {
  lua_pushthread(L);
  if (thread_of(L)->is_task) thread_of(L)->is_task = TASK_IS_KNOWN;
  lua_pushboolean(L, thread_of(L)->is_task != 0);
  return 2;
}

static int co_close(lua_State *L) {
  lua_State *co = thread_argument(L);
  if (is_active(L, co)) return luaL_error(L, "cannot close a %s coroutine", co_state(L, co));
  if (close_coroutine(L, co) == LUA_OK) {
    lua_pushboolean(L, 1);
    return 1;
  }
  lua_pushboolean(L, 0);
  lua_xmove(co, L, 1);
  return 2;
}

static const luaL_Reg co_functions[] = {
  {"create", co_create},   {"resume", co_resume}, {"running", co_running},         {"status", co_status}, {"wrap", co_wrap},
  {"yield", co_yield},     {"close", co_close},   {"isyieldable", co_isyieldable}, {NULL, NULL},
};

static int open_coroutine(lua_State *L) {
  luaL_newlib(L, co_functions);
  return 1;
}

/* The function that cannot yield, of those that are called now, for an error. */
static const char *what_cannot_wait(lua_State *L) {
  lua_Debug ar;
  for (int level = 1; lua_getstack(L, level, &ar); level++) {
    if (!lua_getinfo(L, "Sn", &ar)) break;
    if (*ar.what == 'C') return ar.name != NULL ? ar.name : "a function in C";
  }
  return "a metamethod";
}

static int wait_answered(lua_State *L, int status, lua_KContext context) {
  (void)status, (void)context;
  return lua_gettop(L);
}

/* wait(...): gives the values to the host, and what the host answers to the caller. */
static int wait_for_host(lua_State *L) {
  struct torpor_arena *arena = torpor_arena(G(L));
  if (arena->nested > 0 || !lua_isyieldable(L)) return luaL_error(L, "cannot wait within %s", what_cannot_wait(L));
  arena->request = TORPOR_WAIT;
  return lua_yieldk(L, lua_gettop(L), 0, wait_answered);
}
