#!/usr/bin/env bash
# A quiet client next to each hostile one: scripts/dev abuse [NAME...] [--list] [--strict].
set -euo pipefail

cargo build --release --locked -p kvrail -p kvrail-tests --bins
exec "${CARGO_TARGET_DIR:-target}/release/kvrail-abuse" "$@"
