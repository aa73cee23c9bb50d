#!/usr/bin/env bash
# Runs in a machine: the hardware suite, and the device contract on a real namespace in each mode.

# shellcheck source=inside.sh
. /job/inside.sh

set -o pipefail
programs=/job/programs
# The tests find the binaries where they were built.
target=$(<$programs/target)
mkdir -p "$target" "$(dirname "$target")/tmp"
# Copied, because programs that start often would be read over 9p each time.
cp $programs/kvrail $programs/kvrail-actor "$target/"

export RUST_BACKTRACE=1 KVRAIL_HARDWARE=1
status=0
# Adds the seconds of each test to its line.
timed() {
    local line since=$SECONDS
    while IFS= read -r line; do
        if [[ $line == "test "*" ... "* ]]; then
            line+=" ($((SECONDS - since)) s)" since=$SECONDS
        fi
        echo "$line"
    done
}
step() {
    echo "== $1"
    "${@:2}" --test-threads 1 --show-output 2>&1 | timed || status=1
}

echo "== machine: kernel $(uname -r), $(nproc) processors"
skips=()
case ${KVRAIL_SUITE:-all} in
    # Tests of behaviour that depends on the kernel: without those of the store and of `kvrail
    # target`.
    kernel) skips=(--skip store_power:: --skip kills::) ;;
    store-power) step store-power $programs/hardware store_power:: && exit $status ;;
    power) step power $programs/hardware store_power::reset:: && exit $status ;;
esac
step hardware $programs/hardware "${skips[@]}"
KVRAIL_CONTRACT_DEVICE=$(namespace kvr-main 1) step contract $programs/contract polled::
# Blocks of 4 KiB.
KVRAIL_CONTRACT_DEVICE=$(namespace kvr-format 1) step contract-4KiB $programs/contract \
    polled::{passthrough,iopoll}::{offsets,sizes}_round_trip
exit $status
