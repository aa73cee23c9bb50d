#!/usr/bin/env bash
# The object tier of Dynamo's KVBM: scripts/dev kvbm check|test [arguments of cargo test].
set -euo pipefail

verb=${1:-}
if [[ ! $verb =~ ^(check|test)$ ]]; then
    echo "usage: scripts/dev kvbm check|test [arguments of cargo test]" >&2
    exit 2
fi
shift

# The NIXL that this KVBM is made for, and what building KVBM needs: libclang and protoc.
nixl=1.3.2
target=$(realpath -ms "${CARGO_TARGET_DIR:-target}")
home=$target/kvbm
venv=$home/venv
if [[ ! -x $venv/ready ]]; then
    echo "== installing NIXL $nixl, libclang and protoc, about 100 MB, into $venv"
    rm -rf "$venv"
    python3 -m venv "$venv"
    timeout 600 "$venv/bin/python" -m pip install -q libclang grpcio-tools
    timeout 600 "$venv/bin/python" -m pip install -q --no-deps "nixl-cu12==$nixl"
    install -m 755 /dev/stdin "$venv/bin/protoc" <<<"#!/bin/sh
exec '$venv/bin/python' -m grpc_tools.protoc \"\$@\""
    install -m 755 /dev/null "$venv/ready"
fi
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export PROTOC=$venv/bin/protoc LIBCLANG_PATH=$packages/clang/native
BINDGEN_EXTRA_CLANG_ARGS=-I$(cc -print-file-name=include) && export BINDGEN_EXTRA_CLANG_ARGS

crate=(--locked --manifest-path ffi/engines/kvbm/Cargo.toml --target-dir "$home")
if [[ $verb == check ]]; then
    cargo fmt --check --manifest-path ffi/engines/kvbm/Cargo.toml
    exec cargo clippy -q "${crate[@]}" --all-targets -- -D warnings
fi
cargo build -q --release --locked -p kvrail
export KVRAIL_BINARY=$target/release/kvrail
libraries=$packages/.nixl_cu12.mesonpy.libs
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export NIXL_PLUGIN_DIR=$libraries/plugins NIXL_LOG_LEVEL=ERROR
exec timeout --foreground --kill-after=20 900 cargo test -q "${crate[@]}" "$@"
