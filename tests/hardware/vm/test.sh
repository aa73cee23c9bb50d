#!/usr/bin/env bash
# The hardware suite in a machine of each kernel; results in target/vm. Ends in bounded time.
#
#   test.sh [brief | store-power] [KERNEL...]
#
# Tests of kvrail that do not depend on the kernel run on the last kernel alone. With `brief` only
# tests that depend on the kernel run, on the last one unless another is named: a third of the time.
# With `store-power` only the tests of a store at the end of power run, all of them, on each kernel:
# each flush replayed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Seconds one machine may take; it takes a quarter of that on an idle host.
limit=${KVRAIL_VM_LIMIT:-1500}
suite_of=all points='' cuts=2
case ${1:-} in
    brief)
        shift
        suite_of=kernel
        (($#)) || set -- "${kernels[-1]}"
        ;;
    store-power)
        shift
        suite_of=store-power points=KVRAIL_STORE_POINTS=${KVRAIL_STORE_POINTS:-1000000} cuts=6
        ;;
esac
(($#)) || set -- "${kernels[@]}"
last=${*: -1}

"$vm/build.sh"
results=${CARGO_TARGET_DIR:-target}/vm
programs=$results/programs
rm -rf "$results"
"$vm/programs.sh" "$programs"
cp "$vm/suite.sh" "$programs/"

failed=()
for kernel in "$@"; do
    began=$SECONDS
    say "$kernel kernel"
    part=$suite_of
    [[ $part != all || $kernel == "$last" ]] || part=kernel
    "$vm/boot.sh" "$kernel" --limit "$limit" --out "$results/$kernel" --programs "$programs" \
        -- env KVRAIL_SUITE="$part" ${points:+"$points"} /job/programs/suite.sh ||
        failed+=("$kernel: status $?")
    [[ $part == kernel ]] ||
        "$vm/power.sh" "$kernel" "$cuts" "$results/$kernel/power" "$programs" ||
        failed+=("$kernel, end of power: status $?")
    # One line of JSON for each test.
    awk -v kernel="$kernel" '
        /^== / { part = $2 }
        /^test .* \.\.\. [a-zA-Z]+ \([0-9]+ s\)$/ {
            printf "{\"kernel\":\"%s\",\"suite\":\"%s\",\"test\":\"%s\",\"result\":\"%s\"",
                kernel, part, $2, $(NF - 2)
            printf ",\"seconds\":%d}\n", substr($(NF - 1), 2)
        }' "$results/$kernel/log" >"$results/$kernel/results.json"
    say "$kernel kernel: $(wc -l <"$results/$kernel/results.json") tests in" \
        "$((SECONDS - began)) s; $results/$kernel has log, results.json and console"
done
rm -rf "$programs"
((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
