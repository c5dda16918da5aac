/*
 * C functions that values and calls of Lua refer to, by number: their place in this table, from 1. Numbers are part of images: new ones go to
 * the end.
 */
#ifndef TORPOR_FUNCTIONS_H
#define TORPOR_FUNCTIONS_H

/* The number of a function, in the guise of one; ends the process if it is not in the table, which only a mistake in this crate can cause. */
lua_CFunction torpor_encoded(lua_CFunction function);
lua_CFunction torpor_decoded(lua_CFunction number);

#define torpor_encoded_k(k) ((lua_KFunction)torpor_encoded((lua_CFunction)(k)))
#define torpor_decoded_k(k) ((lua_KFunction)torpor_decoded((lua_CFunction)(k)))

/* Ends what has had its time, where C would go on for long without asking Lua's hooks. */
#define torpor_check(L) ((void)(torpor_arena(G(L))->spent && (torpor_out_of_time(L), 0)))
static void torpor_out_of_time(lua_State *L);
static int torpor_is_spent(void);

/* Frees what a thread keeps for further calls, but for some. */
static void torpor_shrink_calls(lua_State *L);

#endif
