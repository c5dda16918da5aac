/*
 * What C and Rust both know of an arena: its first bytes. See src/arena.rs.
 */
#ifndef TORPOR_ARENA_H
#define TORPOR_ARENA_H

#include <stddef.h>
#include <stdint.h>

/* Why a coroutine has yielded. */
enum torpor_request {
  TORPOR_NONE,    /* coroutine.yield */
  TORPOR_RESUME,  /* coroutine.resume of `target` */
  TORPOR_WAIT     /* it waits for the host */
};

struct torpor_arena {
  /* The node of empty tables. Nobody writes to it; as large as lobject.h's Node, which all.c checks. */
  uint64_t dummy_node[3];
  /* Valid between a yield and its handling; zero while the arena is at rest. */
  struct lua_State *target;
  uint32_t request;
  /* Calls of lua_resume within C functions that cannot yield; 0 while the arena is at rest. */
  uint32_t nested;
  /* Seed of string hashes and random numbers. */
  uint64_t seed;
  /* What runs has had its time: it is ended, and the arena is of no further use. */
  volatile uint32_t spent;
  uint32_t unused;
};

#define torpor_arena(g) ((struct torpor_arena *)(g)->ud)

#endif
