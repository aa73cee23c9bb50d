#!/usr/bin/env bash
# Functions of scripts that run in a machine. Sourced as /job/inside.sh.

# The kernel's name for namespace $2 of the controller with serial $1.
namespace() {
    local block
    for block in /sys/block/nvme*n*; do
        [[ $(tr -d ' ' <"$block/device/serial") == "$1" && $(<"$block/nsid") == "$2" ]] || continue
        echo "/dev/${block##*/}"
    done
}
