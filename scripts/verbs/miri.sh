#!/usr/bin/env bash
# Memory and lanes under Miri, where the nightly component is installed; skipped with a line
# elsewhere.
set -euo pipefail

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "skipped: no Miri; rustup toolchain install nightly --component miri,rust-src"
    exit 0
fi
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri
# proptest needs the current folder; tests that need other system calls are cfg(not(miri)).
export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}" PROPTEST_CASES=${PROPTEST_CASES:-4}
cargo +nightly miri test -p kvrail-memory -p kvrail-ring "$@"
