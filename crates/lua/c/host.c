/*
 * What the host calls: src/ffi.rs declares the same. Nothing here raises an error of Lua into the caller.
 */

/* The largest stack of a spare thread. */
enum { SPARE_STACK = 2 * BASIC_STACK_SIZE };

/* Once per process, before all else. */
void torpor_begin(void) { number_functions(); }

static void set_up(lua_State *L, void *context) {
  (void)context;
  open_libraries(L);
  open_requests(L);
  lua_newtable(L);
  lua_rawseti(L, LUA_REGISTRYINDEX, TASKS);
  lua_gc(L, LUA_GCRESTART);
  lua_gc(L, LUA_GCGEN, 0, 0);
}

/* A new state in an arena, whose seed is set; NULL where there is too little memory. */
lua_State *torpor_new(struct torpor_arena *arena, lua_Alloc alloc) {
  memcpy(arena->dummy_node, &dummynode_, sizeof dummynode_);
  lua_State *L = lua_newstate(alloc, arena);
  if (L == NULL) return NULL;
  memset(lua_getextraspace(L), 0, LUA_EXTRASPACE);
  thread_of(L)->is_task = 1;
  lua_gc(L, LUA_GCSTOP);
  return protected(L, set_up, NULL) == LUA_OK ? L : NULL;
}

/* The allocator is an address of this process: it is in the arena only while the host runs something in it. All that may call a finalizer. */
void torpor_attach(lua_State *L, lua_Alloc alloc) {
  G(L)->frealloc = alloc;
  now_runs(L);
}

void torpor_detach(lua_State *L) {
  now_runs(NULL);
  G(L)->frealloc = NULL;
}

struct start {
  int64_t number;
  const char *name;
  const char *source;  /* NULL: the global function `name`; else text of the chunk `name` */
  size_t source_len;
  const struct torpor_value *arguments;
  size_t argument_count;
  lua_State *task;
};

static lua_State *task_of(lua_State *L, int64_t number) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, TASKS);
  lua_rawgeti(L, -1, number);
  lua_State *task = lua_tothread(L, -1);
  lua_pop(L, 2);
  return task;
}

static void push_all(lua_State *L, lua_State *to, const struct torpor_value *values, size_t count) {
  /* The task may have no room, and its errors are for its program: so strings are made here. */
  luaL_checkstack(L, (int)count + 1, "too many arguments");
  for (size_t n = 0; n < count; n++) values = push_value(L, values);
  if (!lua_checkstack(to, (int)count)) luaL_error(L, "too many arguments");
  lua_xmove(L, to, (int)count);
}

static void begin_task(lua_State *L, void *context) {
  struct start *start = context;
  lua_rawgeti(L, LUA_REGISTRYINDEX, TASKS);
  /* One that has ended well begins anew, which dirties less than garbage does. */
  lua_State *task = lua_rawgeti(L, LUA_REGISTRYINDEX, SPARE) == LUA_TTHREAD ? lua_tothread(L, -1) : NULL;
  if (task != NULL) {
    lua_pushnil(L);
    lua_rawseti(L, LUA_REGISTRYINDEX, SPARE);
  } else {
    lua_pop(L, 1);
    task = lua_newthread(L);
  }
  memset(lua_getextraspace(task), 0, LUA_EXTRASPACE);
  thread_of(task)->is_task = 1;
  if (start->source == NULL) {
    lua_getglobal(L, start->name);
    if (!lua_isfunction(L, -1)) luaL_error(L, "there is no function '%s'", start->name);
  } else if (luaL_loadbufferx(L, start->source, start->source_len, start->name, "t") != LUA_OK) {
    lua_error(L);
  }
  lua_xmove(L, task, 1);
  push_all(L, task, start->arguments, start->argument_count);
  lua_rawseti(L, -2, start->number);
  lua_pop(L, 1);
  start->task = task;
}

static void end_task(lua_State *L, void *context) {
  int64_t number = *(int64_t *)context;
  lua_rawgeti(L, LUA_REGISTRYINDEX, TASKS);
  lua_rawgeti(L, -1, number);
  lua_State *task = lua_tothread(L, -1);
  int is_spare = task != NULL && lua_status(task) == LUA_OK && lua_gettop(task) == 0 && stacksize(task) <= SPARE_STACK
    && thread_of(task)->is_task != TASK_IS_KNOWN;
  if (is_spare) lua_rawseti(L, LUA_REGISTRYINDEX, SPARE);
  else lua_pop(L, 1);
  lua_pushnil(L);
  lua_rawseti(L, -2, number);
  lua_pop(L, 1);
}

struct running {
  lua_State *task;
  lua_State *at;
  int count;
  int nresults;
  struct torpor_step *step;
};

static void run_from(lua_State *L, void *context) {
  struct running *running = context;
  (void)L;
  running->step->status = run(running->at, running->task, NULL, running->count, &running->step->at, &running->nresults);
}

static void run_task(lua_State *task, lua_State *at, int count, struct torpor_step *step) {
  struct running running = {task, at, count, 0, step};
  lua_State *L = G(task)->mainthread;
  /* Errors are caught by lua_resume. Should one get past it, the process goes on, and nobody uses this arena any more. */
  if (luaD_rawrunprotected(L, run_from, &running) != LUA_OK) {
    torpor_arena(G(L))->spent = 1;
    step->status = LUA_ERRERR;
    step->at = L;
    step->count = 0;
    return;
  }
  step->count = step->status == LUA_OK || step->status == LUA_YIELD ? running.nresults : 1;
  thread_of(task)->waiter = step->status == LUA_YIELD ? step->at : NULL;
}

/* Leaves the error on the main thread's stack, where `torpor_value` finds it. */
static void failed(lua_State *L, int status, struct torpor_step *step) {
  step->status = status;
  step->at = L;
  step->count = 1;
}

/* Begins a task and runs it until it waits, ends or fails. */
void torpor_start(lua_State *L, int64_t number, const char *name, const char *source, size_t source_len, const struct torpor_value *arguments,
                  size_t argument_count, struct torpor_step *step) {
  struct start start = {number, name, source, source_len, arguments, argument_count, NULL};
  int status = protected(L, begin_task, &start);
  if (status != LUA_OK) {
    failed(L, status, step);
    return;
  }
  run_task(start.task, start.task, (int)argument_count, step);
}

struct answer {
  lua_State *at;
  const struct torpor_value *values;
  size_t count;
};

static void give_answer(lua_State *L, void *context) {
  struct answer *answer = context;
  push_all(L, answer->at, answer->values, answer->count);
}

/* Answers a task that waits. Status -1: it does not. */
void torpor_answer(lua_State *L, int64_t number, const struct torpor_value *values, size_t count, struct torpor_step *step) {
  lua_State *task = task_of(L, number);
  lua_State *at = task != NULL ? thread_of(task)->waiter : NULL;
  step->status = -1;
  if (at == NULL) return;
  struct answer answer = {at, values, count};
  int status = protected(L, give_answer, &answer);
  if (status != LUA_OK) {
    failed(L, status, step);
    return;
  }
  run_task(task, at, (int)count, step);
}

/* Visits all values of a step; strings are valid until `torpor_finish`. False where there were too many, or tables in too many tables. */
int torpor_visit_values(const struct torpor_step *step, torpor_visit visit, void *context) {
  lua_State *at = step->at;
  int top = lua_gettop(at);
  int all = 1;
  for (int n = 0; all && n < (int)step->count; n++) all = visit_value(at, top - (int)step->count + n + 1, 0, visit, context);
  lua_settop(at, top);
  return all;
}

static void push_traceback(lua_State *L, void *context) {
  const struct torpor_step *step = context;
  lua_State *at = step->at;
  int top = lua_gettop(L);
  /* Copied as it is, since its own thread may have no room. */
  setobj2s(L, L->top.p, s2v(at->top.p - 1));
  api_incr_top(L);
  const char *message = lua_tostring(L, -1);
  if (message == NULL && step->status == LUA_ERRMEM) message = "not enough memory";
  if (message == NULL) message = lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, -1));
  luaL_traceback(L, at, message, 0);
  lua_replace(L, top + 1);
  lua_settop(L, top + 1);
}

/* Ends a task: what it would close is closed, unless it has ended by itself. */
static void forget_task(lua_State *L, int64_t number, int has_ended) {
  lua_State *task = task_of(L, number);
  if (task != NULL && !has_ended) {
    lua_State *before = now_runs(task);
    lua_closethread(task, NULL);
    now_runs(before);
    lua_settop(task, 0);
  }
  int top = lua_gettop(L);
  /* What cannot be forgotten for lack of memory is dead. */
  protected(L, end_task, &number);
  lua_settop(L, top);
}

/* Takes the results of a step away; a task that has ended is forgotten. */
void torpor_finish(lua_State *L, int64_t number, const struct torpor_step *step) {
  if (torpor_arena(G(L))->spent) return;
  lua_pop(step->at, (int)step->count);
  if (step->status != LUA_YIELD) forget_task(L, number, step->status == LUA_OK);
}

/* Ends a task that waits. */
void torpor_cancel(lua_State *L, int64_t number) {
  lua_State *task = task_of(L, number);
  if (task != NULL) thread_of(task)->waiter = NULL;
  forget_task(L, number, 0);
}

/* The traceback of a step that failed, as a string on the main thread; false where there is no memory for it. Take it away by `torpor_drop`. */
int torpor_traceback(lua_State *L, const struct torpor_step *step, const char **text, size_t *len) {
  int top = lua_gettop(L);
  if (protected(L, push_traceback, (void *)step) != LUA_OK) {
    lua_settop(L, top);
    return 0;
  }
  *text = lua_tolstring(L, -1, len);
  return 1;
}

void torpor_drop(lua_State *L) { lua_pop(L, 1); }

/* Bytes that Lua uses. */
size_t torpor_used(lua_State *L) { return gettotalbytes(G(L)); }

void torpor_collect(lua_State *L) { luaC_fullgc(L, 0); }
