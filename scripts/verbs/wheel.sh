#!/usr/bin/env bash
# The Python wheel with the sidecar's binary in it: scripts/dev wheel [dev|release].
set -euo pipefail

profile=${1:-release}
target=${CARGO_TARGET_DIR:-target}
tools=$target/python/tools
if [[ ! -x $tools/bin/maturin ]]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install -q "maturin>=1.9,<2"
fi

cargo build -q --locked --profile "$profile" -p kvrail
built=$target/$([[ $profile == dev ]] && echo debug || echo "$profile")/kvrail
install -D -m 755 -s "$built" ffi/python/python/kvrail/bin/kvrail
rm -f "$target"/wheels/kvrail-*.whl
"$tools/bin/maturin" build -q --locked --strip --profile "$profile" \
    --manifest-path ffi/python/Cargo.toml --out "$target/wheels"
ls "$target"/wheels/kvrail-*.whl
