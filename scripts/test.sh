#!/usr/bin/env bash
# Runs all tests: tidiness first, then every crate's test programs (`cargo xtask test`) and lints beside them. Skipped tests say so in a line that begins with
# SKIPPED. With TORPOR_TEST_ALL=1 also the tests that take long, and the fuzzers for a minute each.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x "$HOME/.cargo/bin/cargo" ] && export PATH="$HOME/.cargo/bin:$PATH"
export TORPOR_TEST_CACHE=${TORPOR_TEST_CACHE:-$PWD/target/test-cache}

cargo xtask tidy --no-clippy
# The programs under test first, so that no test waits for them.
cargo test --quiet --workspace --no-run
cargo run --quiet --package torpor-testkit --bin servers
all=(); [ "${TORPOR_TEST_ALL:-0}" = 1 ] && all=(--all)
status=0
cargo xtask test --lint "${all[@]}" || status=$?
if [ "${TORPOR_TEST_ALL:-0}" = 1 ]; then cargo xtask fuzz --for 1m || status=$?; fi
exit "$status"
