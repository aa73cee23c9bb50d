#!/usr/bin/env bash
# Format, lints and docs, all without a single warning; a failure does not stop the others.
set -euo pipefail

status=0
echo "== format"
cargo fmt --all --check || status=1
echo "== clippy"
cargo clippy --workspace --all-targets --locked -- -D warnings || status=1
echo "== docs"
export RUSTDOCFLAGS="-D warnings"
cargo doc --workspace --no-deps --document-private-items --locked || status=1
exit $status
