#!/usr/bin/env bash
# Ratios between kvrail's modes, and against fio, in one machine: bench.sh [KERNEL [MODE...]].
# ROUNDS, SPAN and PLACES as in ratios.sh; LIMIT is the seconds the machine may take.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Clock ticks that this host's processors have worked, and those of this script's children.
ticks_of_host() { awk '$1 == "cpu" { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }
ticks_of_ours() { awk '{ sub(/.*\) /, ""); print $14 + $15 }' "/proc/$$/stat"; }

kernel=${1:-backports}
shift || true
"$vm/build.sh"
results=${CARGO_TARGET_DIR:-target}/vm/bench
rm -rf "$results"
"$vm/programs.sh" "$results/programs" --release
cp "$vm/ratios.sh" "$results/programs/"
settings=("ROUNDS=${ROUNDS:-3}" "SPAN=${SPAN:-0.6}" "PLACES=${PLACES:-nvme null stripe}")
status=0
began=$SECONDS host=$(ticks_of_host) ours=$(ticks_of_ours)
"$vm/boot.sh" "$kernel" --limit "${LIMIT:-1200}" --out "$results" --programs "$results/programs" \
    -- env "${settings[@]}" /job/programs/ratios.sh "$@" || status=$?
others=$(($(ticks_of_host) - host - $(ticks_of_ours) + ours))
((others > 0)) || others=0
all=$(((SECONDS - began) * $(getconf CLK_TCK) * $(nproc)))
rm -rf "$results/programs"
say "other work had $((others * 100 / all)) % of this host; two processors that spin need two" \
    "cores, so above a few percent the ratios of polled modes are those of the host's scheduler"
say "every figure is in $results/figures"
exit $status
