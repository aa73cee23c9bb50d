#!/usr/bin/env bash
# Instructions of requests that need an NVMe drive, counted in one machine: count.sh [--record].
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

arms=()
for mode in iopoll passthrough passthrough+iopoll; do
    arms+=(--arm "$mode" --arm "raw:$mode")
done
stored=bench/results/instructions.json

"$vm/build.sh"
cargo build --release --locked -p kvrail-bench --example count
target=${CARGO_TARGET_DIR:-target}
results=$target/vm/count
rm -rf "$results"
mkdir -p "$results/programs"
# The counter finds functions by their names.
strip --strip-debug -o "$results/programs/count" "$target/release/examples/count"
cp "$stored" "$results/"
status=0
# shellcheck disable=SC2016 # for the machine's shell
"$vm/boot.sh" backports --limit 900 --out "$results" --programs "$results/programs" -- \
    bash -c '. /job/inside.sh
        /job/programs/count --device "$(namespace kvr-main 1)" \
            --baseline /out/instructions.json "$@"' count "${arms[@]}" "$@" || status=$?
rm -rf "$results/programs"
((status != 0)) || cp "$results/instructions.json" "$stored"
exit $status
