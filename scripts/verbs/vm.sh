#!/usr/bin/env bash
# Virtual machines with NVMe controllers: scripts/dev vm build|test|package|reboots|shell|run|bench.
set -euo pipefail

hardware=tests/hardware/vm
verb=${1:-}
shift || true
case $verb in
    build | test | package | reboots | bench) exec "$hardware/$verb.sh" "$@" ;;
    shell | run)
        "$hardware/build.sh"
        kernel=stable
        [[ ${1:-} != --kernel ]] || { kernel=$2 && shift 2; }
        [[ $verb == run ]] || exec "$hardware/boot.sh" "$kernel" --shell
        exec "$hardware/boot.sh" "$kernel" "$@"
        ;;
esac
cat >&2 <<'USAGE'
usage: scripts/dev vm build                     fetch and unpack what a machine boots from
       scripts/dev vm test [KERNEL...]          the hardware suite on both kernels, or those named
       scripts/dev vm test brief [KERNEL]      what is about the kernel, on the newer one
       scripts/dev vm test store-power [KERNEL...]  stores and the end of power, each flush replayed
       scripts/dev vm package [KERNEL]          the Debian package's life under systemd
       scripts/dev vm reboots [KERNEL]          three boots: a late drive, a broken file
       scripts/dev vm bench [KERNEL [MODE...]]  the table of ratios; ROUNDS=3, PLACES=nvme
       scripts/dev vm shell [--kernel KERNEL]   a shell in a machine
       scripts/dev vm run [--kernel KERNEL] [--limit S] [--out DIR] [--programs DIR] -- COMMAND
KERNEL is stable or backports; tests/hardware/README.md has the rest
USAGE
exit 2
