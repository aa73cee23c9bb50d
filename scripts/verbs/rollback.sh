#!/usr/bin/env bash
# Back to the release before: builds it, and has it serve stores that this tree's program wrote.
set -euo pipefail

# The release before, as tests/flow/rollback/mod.rs has it.
revision=abf162b2
if ! git cat-file -e "$revision^{commit}" 2>/dev/null; then
    echo "skipped: back to the release before: no revision $revision here (git fetch --unshallow)"
    exit 0
fi
tree=$PWD/target/rollback/$revision
if [[ ! -d $tree ]]; then
    mkdir -p "$tree.new"
    git archive "$revision" | tar -x -C "$tree.new"
    mv "$tree.new" "$tree"
fi
(cd "$tree" && CARGO_TARGET_DIR=$tree/../build cargo build --locked -p kvrail)
cargo build --locked -p kvrail
KVRAIL_RELEASE_BEFORE=$PWD/target/rollback/build/debug/kvrail \
    cargo test --locked -p kvrail-tests --test flow rollback:: -- --show-output
