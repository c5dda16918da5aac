//! What `c/host.c` offers. All of it takes a state whose arena is attached, and raises no error of Lua into its caller.

use std::ffi::{c_char, c_int, c_long, c_void};

/// `lua_State`.
#[repr(C)]
pub(crate) struct Lua {
    _opaque: [u8; 0],
}

/// `lua_Alloc`.
pub(crate) type Alloc = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, usize) -> *mut c_void;

/// `struct torpor_arena`: the first bytes of an arena.
#[repr(C)]
pub(crate) struct Shared {
    pub(crate) dummy_node: [u64; 3],
    pub(crate) target: *mut Lua,
    pub(crate) request: u32,
    pub(crate) nested: u32,
    pub(crate) seed: u64,
    pub(crate) spent: u32,
    pub(crate) unused: u32,
}

/// `struct torpor_value`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawValue {
    pub(crate) kind: i64,
    pub(crate) of: RawOf,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union RawOf {
    pub(crate) integer: i64,
    pub(crate) number: f64,
    pub(crate) string: RawString,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawString {
    pub(crate) bytes: *const u8,
    pub(crate) len: usize,
}

/// Kinds of [`RawValue`]: `LUA_T…`, and one for numbers that are not integers.
pub(crate) mod kind {
    pub(crate) const END: i64 = -3;
    pub(crate) const FLOAT: i64 = -2;
    pub(crate) const HANDLE: i64 = -4;
    pub(crate) const NIL: i64 = 0;
    pub(crate) const BOOLEAN: i64 = 1;
    pub(crate) const NUMBER: i64 = 3;
    pub(crate) const STRING: i64 = 4;
    pub(crate) const TABLE: i64 = 5;
}

/// `torpor_visit`.
pub(crate) type Visit = unsafe extern "C" fn(*mut c_void, *const RawValue) -> c_int;

/// `struct torpor_step`.
#[repr(C)]
pub(crate) struct RawStep {
    pub(crate) status: i64,
    pub(crate) at: *mut Lua,
    pub(crate) count: i64,
}

/// Values of [`RawStep::status`].
pub(crate) mod status {
    pub(crate) const NOT_WAITING: i64 = -1;
    pub(crate) const OK: i64 = 0;
    pub(crate) const YIELD: i64 = 1;
    pub(crate) const ERROR: i64 = 2;
}

unsafe extern "C" {
    pub(crate) fn torpor_begin();
    pub(crate) fn torpor_new(arena: *mut Shared, alloc: Alloc) -> *mut Lua;
    pub(crate) fn torpor_attach(lua: *mut Lua, alloc: Alloc);
    pub(crate) fn torpor_detach(lua: *mut Lua);
    pub(crate) fn torpor_start(
        lua: *mut Lua,
        number: i64,
        name: *const c_char,
        source: *const u8,
        source_len: usize,
        arguments: *const RawValue,
        argument_count: usize,
        step: *mut RawStep,
    );
    pub(crate) fn torpor_answer(lua: *mut Lua, number: i64, values: *const RawValue, count: usize, step: *mut RawStep);
    pub(crate) fn torpor_visit_values(step: *const RawStep, visit: Visit, context: *mut c_void) -> c_int;
    pub(crate) fn torpor_allow(ticks: c_long);
    pub(crate) fn torpor_was_spent(arena: *const Shared) -> c_int;
    pub(crate) fn torpor_tick(signal: c_int);
    pub(crate) fn torpor_cancel(lua: *mut Lua, number: i64);
    pub(crate) fn torpor_finish(lua: *mut Lua, number: i64, step: *const RawStep);
    pub(crate) fn torpor_traceback(lua: *mut Lua, step: *const RawStep, text: *mut *const u8, len: *mut usize)
    -> c_int;
    pub(crate) fn torpor_drop(lua: *mut Lua);
    pub(crate) fn torpor_used(lua: *mut Lua) -> usize;
    pub(crate) fn torpor_collect(lua: *mut Lua);
}
