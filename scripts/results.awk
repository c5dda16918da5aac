#!/usr/bin/awk -f
# Shortens what `cargo test` prints: a line for each test binary, and all that a binary printed in which a test failed
# (its last 300 lines where there are more). Before the first binary, warnings and errors of the build.

function ended(failed, from, line) {
  if (failed) {
    from = count > 300 ? count - 300 : 0
    for (line = from; line < count; line++) print lines[line]
  }
  if (binary != "") print binary ": " (failed ? "FAILED" : result == "" ? oks " ok" : result)
  fflush()
  binary = ""; result = ""; count = 0; oks = 0
}

/^error: test failed, to rerun pass/ { ended(1); print; next }
/^     Running |^   Doc-tests / {
  ended(0)
  binary = $0; sub(/^ +(Running )?/, "", binary); sub(/ \(.*\/deps\//, " (", binary)
  next
}
/^SKIPPED/ { print; next }
binary == "" && /^(warning|error)|^ +-->/ { print; fflush() }
/^test .* ok$/ { oks++ }
/^test result: / { result = substr($0, 14); sub(/ 0 measured; 0 filtered out; /, " ", result) }
{ lines[count++] = $0 }
END { ended(0); for (line = 0; line < count; line++) print lines[line] }
