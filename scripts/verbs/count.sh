#!/usr/bin/env bash
# Instructions a request costs, against the stored counts: scripts/dev count [--record].
set -euo pipefail

if ! command -v valgrind >/dev/null; then
    echo "skipped: no valgrind; install it (apt install valgrind)"
    exit 0
fi
cargo build --release --locked -p kvrail-bench --example count
exec "${CARGO_TARGET_DIR:-target}/release/examples/count" "$@"
