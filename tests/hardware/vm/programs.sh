#!/usr/bin/env bash
# Builds the programs that run inside a machine, and gathers them in a folder: programs.sh FOLDER.
# They are the ones that every other test uses; with `--release` only an optimised kvrail.
set -euo pipefail

folder=$1
mkdir -p "$folder"
target=${CARGO_TARGET_DIR:-target}

put() { strip -o "$folder/$1" "$2"; }

if [[ ${2:-} == --release ]]; then
    cargo build --locked --release -p kvrail
    put kvrail "$target/release/kvrail"
    exit 0
fi
cargo build --workspace --locked
put kvrail "$target/debug/kvrail"
put kvrail-actor "$target/debug/kvrail-actor"

# The folder where the tests expect the two programs above: the guest has it too.
(cd "$target/debug" && pwd) >"$folder/target"
built=$(CARGO_TERM_QUIET=false cargo test --workspace --locked --no-run \
    --test contract --test hardware 2>&1) || { echo "$built" >&2 && exit 1; }
for name in contract hardware; do
    put "$name" "$(sed -n "s|.*Executable $name/main.rs (\(.*\))|\1|p" <<<"$built")"
done
