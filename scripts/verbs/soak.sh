#!/usr/bin/env bash
# All kinds of verified traffic for a minute: scripts/dev soak [seconds].
set -euo pipefail

export KVRAIL_SOAK_SECONDS=${1:-60}
cargo build --release --workspace --locked
cargo test --release --locked -p kvrail-tests --test flow -- --nocapture --test-threads 1 soak::
