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

#endif
