#!/usr/bin/env bash
# The binary in an optimised build: scripts/dev run [arguments of kvrail].
set -euo pipefail

exec cargo run --release --locked -- "$@"
