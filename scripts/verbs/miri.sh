#!/usr/bin/env bash
# Memory and lanes under Miri, where the nightly component is installed; says so where it is not.
set -euo pipefail

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "skipped: no Miri; rustup toolchain install nightly --component miri,rust-src"
    exit 0
fi
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri
export PROPTEST_CASES=${PROPTEST_CASES:-4} PROPTEST_DISABLE_FAILURE_PERSISTENCE=true
# Tests that need system calls are marked cfg(not(miri)).
cargo +nightly miri test -p kvrail-memory -p kvrail-ring "$@"
