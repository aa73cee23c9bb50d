#!/usr/bin/env bash
# Ratios between kvrail's modes, and against fio, in one machine: bench.sh [KERNEL [MODE...]].
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

kernel=${1:-backports}
shift || true
"$vm/build.sh"
results=${CARGO_TARGET_DIR:-target}/vm/bench
rm -rf "$results"
"$vm/programs.sh" "$results/programs" --release
cp "$vm/ratios.sh" "$results/programs/"
status=0
"$vm/boot.sh" "$kernel" --limit 1200 --out "$results" --programs "$results/programs" \
    -- env ROUNDS="${ROUNDS:-3}" /job/programs/ratios.sh "$@" || status=$?
rm -rf "$results/programs"
say "every figure is in $results/figures"
exit $status
