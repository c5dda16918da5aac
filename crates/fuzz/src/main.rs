//! The fuzzer: libFuzzer has `main`, and calls this with bytes. `TORPOR_FUZZ_TARGET` names the target.
#![no_main]
#![allow(unsafe_code, reason = "the macro's function is called from C")]

use std::sync::LazyLock;

use torpor_fuzz::{Target, find};

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("TORPOR_FUZZ_TARGET").unwrap_or_default();
    find(&name).unwrap_or_else(|| panic!("TORPOR_FUZZ_TARGET={name:?} names no target"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
