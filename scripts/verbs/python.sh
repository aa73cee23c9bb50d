#!/usr/bin/env bash
# The Python package: wheel into an empty environment, the guide's lines, types, and its tests.
set -euo pipefail

skip() {
    echo "skipped: the whole Python suite: $1"
    exit 0
}

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    skip "Python 3.11 or later is needed (apt-get install python3)"
python3 -c 'import ensurepip' 2>/dev/null ||
    skip "Python makes no environments (apt-get install python3-venv)"

home=$(realpath -ms "${CARGO_TARGET_DIR:-target}")/python
mkdir -p "$home"
if [[ ! -x $home/tests/bin/pytest ]]; then
    rm -rf "$home/tests"
    python3 -m venv "$home/tests"
    "$home/tests/bin/pip" install -q numpy pytest mypy >"$home/pip.log" 2>&1 ||
        skip "numpy, pytest and mypy cannot be installed: $(tail -n 1 "$home/pip.log")"
fi
wheel=$(scripts/verbs/wheel.sh dev)

echo "== $(basename "$wheel") in an empty environment"
rm -rf "$home/empty"
python3 -m venv "$home/empty"
"$home/empty/bin/pip" install -q --no-index "$wheel"
sed -n "/^\`\`\`python title=first.py/,/^\`\`\`\$/{//!p}" docs/guide.md >"$home/first.py"
"$home/empty/bin/python" "$home/first.py"
"$home/empty/bin/kvrail" --version

echo "== types"
"$home/tests/bin/pip" install -q --no-index --force-reinstall "$wheel"
(cd ffi/python && "$home/tests/bin/mypy" python/kvrail)

echo "== tests"
cd ffi/python
PYTHONDONTWRITEBYTECODE=1 exec "$home/tests/bin/python" -m pytest "$@"
