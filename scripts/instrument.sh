#!/bin/sh
# What `cargo xtask fuzz` sets as RUSTC_WORKSPACE_WRAPPER: gives the flags of TORPOR_FUZZ_FLAGS to the compiler of our own crates. Build
# scripts and macros run on the machine itself and are not compiled for a --target, so they go without.
case " $* " in
*" --target "*) exec "$@" $TORPOR_FUZZ_FLAGS ;;
*) exec "$@" ;;
esac
