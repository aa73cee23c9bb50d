#!/usr/bin/env bash
# Builds the programs that run inside a machine, and gathers them in a folder: programs.sh FOLDER.
# They are those that every other test uses; `PROFILE=release` in the environment for benchmarks.
set -euo pipefail

folder=$1
profile=${PROFILE:-dev}
target=${CARGO_TARGET_DIR:-target}/${profile/dev/debug}
mkdir -p "$folder"

put() { strip -o "$folder/$1" "$2"; }

cargo build --workspace --locked --profile "$profile"
put kvrail "$target/kvrail"
put kvrail-actor "$target/kvrail-actor"
[[ $profile != release ]] || exit 0

# Where the tests expect the two above: the guest has them there too.
(cd "$target" && pwd) >"$folder/target"
said=$(CARGO_TERM_QUIET=false cargo test --workspace --locked --profile "$profile" --no-run \
    --test contract --test hardware 2>&1) || { echo "$said" >&2 && exit 1; }
for name in contract hardware; do
    put "$name" "$(sed -n "s|.*Executable $name/main.rs (\(.*\))|\1|p" <<<"$said")"
done
