#!/usr/bin/env bash
# The benchmark in an optimised build: scripts/dev bench [arguments of kvrail bench].
set -euo pipefail

exec cargo run --release --locked -- bench "$@"
