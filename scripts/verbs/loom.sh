#!/usr/bin/env bash
# The lanes under loom: every interleaving of up to three preemptions, in a target of its own.
set -euo pipefail

export RUSTFLAGS="--cfg loom"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom
export LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3}
cargo test -p kvrail-ring --lib --release --locked "$@"
