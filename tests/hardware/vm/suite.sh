#!/usr/bin/env bash
# Runs in a machine: the hardware suite, and the device contract on a real namespace in each mode.

programs=/job/programs
# The tests find the binaries where they were built.
target=$(<$programs/target)
mkdir -p "$target" "$(dirname "$target")/tmp"
ln -sf $programs/kvrail $programs/kvrail-actor "$target/"

# The kernel's name for namespace $2 of the controller with serial $1.
namespace() {
    local block
    for block in /sys/block/nvme*n*; do
        [[ $(tr -d ' ' <"$block/device/serial") == "$1" && $(<"$block/nsid") == "$2" ]] || continue
        echo "/dev/${block##*/}"
    done
}

export RUST_BACKTRACE=1 KVRAIL_HARDWARE=1
status=0
step() {
    echo "== $1"
    "${@:2}" --test-threads 1 --show-output || status=1
}

echo "== machine: kernel $(uname -r), $(nproc) processors"
step hardware $programs/hardware
KVRAIL_CONTRACT_DEVICE=$(namespace kvr-main 1) step contract $programs/contract polled::
exit $status
