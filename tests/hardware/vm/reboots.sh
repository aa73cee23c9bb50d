#!/usr/bin/env bash
# A host that boots under faults: reboots.sh [KERNEL]. Three boots of one machine with systemd; its
# drives and its root live on. `booted.sh` has the steps.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

kernel=${1:-stable}
"$vm/build.sh"
target=${CARGO_TARGET_DIR:-target}
cargo build --locked -p kvrail -p kvrail-tests --bin kvrail --bin kvrail-actor
results=$target/vm/reboots
programs=$results/programs
images=$(mktemp -d)
trap 'rm -rf "$images" "$programs"' EXIT
rm -rf "$results"
mkdir -p "$programs"
DPKG_DEB_COMPRESSOR_TYPE=none config/debian/build.sh "$target/debug/kvrail" "$programs" 1-1
strip -o "$programs/kvrail-actor" "$target/debug/kvrail-actor"
cp "$vm/booted.sh" "$vm/unit.sh" "$programs/"

# boot STEP [OPTION...]: a step that is not the last one ends in `systemctl reboot`.
boot() {
    local out=$results/$1
    "$vm/boot.sh" "$kernel" --systemd --limit "${KVRAIL_VM_LIMIT:-300}" --out "$out" \
        --programs "$programs" --images "$images" "${@:2}" -- bash /job/programs/booted.sh "$1" ||
        die "the boot '$1' ended with $?; $out has log and console"
    [[ ! -e $out/root.tar ]] || mv "$out/root.tar" "$programs/root.tar"
}
boot install
boot late --late kvr-slow
boot broken
