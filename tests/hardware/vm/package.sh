#!/usr/bin/env bash
# The life of the Debian package in a machine with systemd: package.sh [KERNEL]. Two builds of the
# same program with two versions; `life.sh` has the steps.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

kernel=${1:-stable}
"$vm/build.sh"
target=${CARGO_TARGET_DIR:-target}
cargo build --release --locked -p kvrail -p kvrail-tests --bin kvrail --bin kvrail-actor
results=$target/vm/package
programs=$results/programs
built=$target/release
rm -rf "$results"
mkdir -p "$programs"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
for build in "$version-1" "$version-2"; do
    # Packing takes most of the time.
    DPKG_DEB_COMPRESSOR_TYPE=none config/debian/build.sh "$built/kvrail" "$programs" "$build"
done
strip -o "$programs/kvrail-actor" "$built/kvrail-actor"
cp "$vm/life.sh" "$vm/unit.sh" "$programs/"
status=0
"$vm/boot.sh" "$kernel" --systemd --limit "${KVRAIL_VM_LIMIT:-600}" --out "$results" \
    --programs "$programs" -- bash /job/programs/life.sh "$version-1" "$version-2" || status=$?
rm -rf "$programs"
((status == 0)) || die "the package's life ended with $status; $results has log and console"
