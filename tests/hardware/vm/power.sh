#!/usr/bin/env bash
# Boots a machine again and again, ends its power under a store's load, and checks the content at
# the next boot: power.sh KERNEL ROUNDS OUT PROGRAMS.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

kernel=$1 rounds=$2 out=$3 programs=$4
images=$(mktemp -d)
trap 'rm -rf "$images"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkdir -p "$out"
rm -f "$out/ledger"
for ((round = 0; round <= rounds; round++)); do
    how=kill
    ((round % 2)) || how=reset
    ((round < rounds)) || how=look
    "$vm/boot.sh" "$kernel" --limit 300 --out "$out" --programs "$programs" --images "$images" \
        -- env KVRAIL_SUITE=power KVRAIL_POWER=$how /job/programs/suite.sh
    cat "$out/log" >>"$out/all"
    say "$kernel kernel, round $round: power ended by $how, ledger of $(wc -l <"$out/ledger") lines"
done
