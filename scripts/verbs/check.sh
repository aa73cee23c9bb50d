#!/usr/bin/env bash
# Format, lints and docs, all without a single warning.
set -euo pipefail

echo "== format"
cargo fmt --all --check
echo "== clippy"
cargo clippy --workspace --all-targets --locked -- -D warnings
echo "== docs"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked
