#!/usr/bin/env bash
# Rust, C and Python clients compared (and NIXL): scripts/dev clients [PYTHON] [SECONDS] [ROUNDS].
set -euo pipefail

home=${CARGO_TARGET_DIR:-target}
python=${1:-$home/python/tests/bin/python}
cargo build -q --release --locked -p kvrail -p kvrail-c -p kvrail-python
cargo build -q --release --locked -p kvrail-bench --example client_arm
rm -rf "$home/python/release"
mkdir -p "$home/python/release"
cp -r ffi/python/python/kvrail "$home/python/release/"
cp "$home/release/lib_kvrail.so" "$home/python/release/kvrail/_kvrail.abi3.so"
export PYTHONPATH=$PWD/$home/python/release CUDA_VISIBLE_DEVICES=
exec "$python" bench/clients/run.py "$home/release" "${@:2}"
