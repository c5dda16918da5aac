#!/usr/bin/env bash
# Runs all tests: tidiness first, then every crate's. Shown are each test binary's result, whatever failed with all that it
# said, and a count; the whole output is in target/test.log. Skipped tests say so in a line that begins with SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x "$HOME/.cargo/bin/cargo" ] && export PATH="$HOME/.cargo/bin:$PATH"
export TORPOR_TEST_CACHE=${TORPOR_TEST_CACHE:-$PWD/target/test-cache}
log=target/test.log; mkdir -p target

cargo xtask tidy
# The programs under test first, so that no test waits for them.
cargo build --package torpor
cargo run --quiet --package torpor-testkit --bin zoo
# End-to-end tests share the machine's CPUs with the programs they measure: one test binary at a time, few threads.
# What takes too long for every day is ignored by default; a process that a test starts for itself does nothing alone.
all=(); [ "${TORPOR_TEST_ALL:-0}" = 1 ] && all=(--include-ignored)
status=0
cargo test --workspace --no-fail-fast -- --test-threads=2 --show-output "${all[@]}" 2>&1 | tee "$log" | scripts/results.awk || status=$?
if [ "${TORPOR_TEST_ALL:-0}" = 1 ]; then cargo xtask fuzz --for 1m || status=$?; fi
skipped=$(grep -c '^SKIPPED' "$log" || true)
passed=$(awk '/^test result:/ { passed += $4 } END { print passed + 0 }' "$log")
failed=$(awk '/^test result:/ { failed += $6 } END { print failed + 0 }' "$log")
grep '^test .*FAILED' "$log" || true
echo "$passed passed, $failed failed, $skipped skipped"
exit "$status"
