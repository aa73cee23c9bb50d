#!/usr/bin/env bash
# Binary, C libraries, header and pkg-config file below a prefix: scripts/dev install PREFIX.
set -euo pipefail

prefix=${1:?where to, as /usr/local}
profile=${2:-release}
if [[ $profile == release ]]; then
    cargo build --release --locked -p kvrail -p kvrail-c
fi
built=${CARGO_TARGET_DIR:-target}/$profile
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
soname=libkvrail.so.$(sed -n 's/^#define KVRAIL_ABI_VERSION //p' ffi/c/include/kvrail.h)

install -d "$prefix"/{bin,lib/pkgconfig,include}
install -m 755 "$built/kvrail" "$prefix/bin/"
install -m 755 "$built/libkvrail.so" "$prefix/lib/libkvrail.so.$version"
ln -sf "libkvrail.so.$version" "$prefix/lib/$soname"
ln -sf "$soname" "$prefix/lib/libkvrail.so"
install -m 644 "$built/libkvrail.a" "$prefix/lib/"
install -m 644 ffi/c/include/kvrail.h "$prefix/include/"
sed "s|@PREFIX@|$(cd "$prefix" && pwd)|; s|@VERSION@|$version|" ffi/c/kvrail.pc.in \
    >"$prefix/lib/pkgconfig/kvrail.pc"
