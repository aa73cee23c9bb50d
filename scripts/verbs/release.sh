#!/usr/bin/env bash
# Packages of a release, with an SBOM and checksums: scripts/dev release [FOLDER].
set -euo pipefail
# Two builds of a commit give the same bytes (docs/releasing.md lists the exceptions).
umask 022

target=${CARGO_TARGET_DIR:-target}
out=${1:-$target/packages}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# Panic messages have paths of files: the builder's folders are replaced by fixed names. Of several
# that match the last one counts. The standard library's are named by its commit, as where its
# sources are not installed.
mkdir -p "$target"
commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
RUSTFLAGS=${RUSTFLAGS:-}
for remap in "$(realpath .)=kvrail" "$(realpath "$target")=target" \
    "${CARGO_HOME:-$HOME/.cargo}=cargo" \
    "$(rustc --print sysroot)/lib/rustlib/src/rust=/rustc/$commit"; do
    RUSTFLAGS+=" --remap-path-prefix=$remap"
done
# Crates that are in part of C name folders too.
CFLAGS="${CFLAGS:-} -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=cargo"
export RUSTFLAGS CFLAGS
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
# It may be unpacked anywhere.
# shellcheck disable=SC2016 # for pkg-config
sed -i 's|^prefix=.*|prefix=${pcfiledir}/../..|' "$tree/kvrail-$version/lib/pkgconfig/kvrail.pc"
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
