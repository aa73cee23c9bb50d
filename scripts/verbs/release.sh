#!/usr/bin/env bash
# Packages of a release, with an SBOM and checksums: scripts/dev release [FOLDER].
set -euo pipefail

target=${CARGO_TARGET_DIR:-target}
out=${1:-$target/packages}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# Panic messages name files: those of the builder's folders are named by what they are.
here=$(pwd)
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$here=kvrail \
--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
machine=$(uname -m)

rm -rf "$out"
mkdir -p "$out"
cargo build --release --locked -p kvrail -p kvrail-c

package=$(config/debian/build.sh "$target/release/kvrail" "$out")
scripts/dev image "$package" "$out"

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
scripts/dev install "$tree/kvrail-$version" >/dev/null
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    -C "$tree" -cf - "kvrail-$version" | gzip -9n >"$out/kvrail-$version-$machine.tar.gz"

scripts/dev wheel release
cp "$target"/wheels/kvrail-*.whl "$out/"

tools=$target/python/sbom
if [[ ! -x $tools/bin/python ]]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install -q "cyclonedx-python-lib[json-validation]>=11,<12"
fi
"$tools/bin/python" config/debian/sbom.py >"$out/kvrail-$version.cdx.json"

(cd "$out" && sha256sum -- * >SHA256SUMS)
cat "$out/SHA256SUMS"
