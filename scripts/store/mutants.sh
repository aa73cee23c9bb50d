#!/usr/bin/env bash
# Plants each bug of mutants.txt in a copy of the store; each must be found: [numbers...].
# A test finds a bug when it passes without the bug and fails with it, both in time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

table=scripts/store/mutants.txt
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
seconds=${KVRAIL_MUTANT_SECONDS:-60}
built=$PWD/target/mutants

# With new times: else the build of an earlier run, with its last bug in it, would count as fresh.
git ls-files -co --exclude-standard -- Cargo.toml Cargo.lock .cargo rust-toolchain.toml engine ffi \
    bench tests scripts/store | tar -cf - -T - | tar -xmf - -C "$copy"

# The table has blocks of five lines: number and name, file, old text, new text, and the test that
# must fail, with how many seeds it is given if 80 are too few.
plant() {
    python3 - "$table" "$1" "$copy/engine/store/src" <<'PY'
import sys
table, number, source = sys.argv[1:]
blocks = [block.split("\n") for block in open(table).read().strip().split("\n\n")]
block = next(block for block in blocks if block[0].split(" ")[0] == number)
name, file, old, new, test = block[:5]
path = f"{source}/{file}"
text = open(path).read()
old, new = old.replace("\\n", "\n"), new.replace("\\n", "\n")
assert text.count(old) == 1, f"{name}: {text.count(old)} places in {file}: {old}"
open(path, "w").write(text.replace(old, new))
print(test)
PY
}

build() {
    (cd "$copy" && CARGO_TARGET_DIR=$built cargo test -q -p kvrail-store --lib --test sim \
        --no-run --locked) >"$copy/log" 2>&1 && return
    echo "$1: does not build" && tail -n 30 "$copy/log" && exit 1
}

# Runs the tests of a name; the exit status is timeout's: 124 when it did not end.
try() {
    (cd "$copy" && CARGO_TARGET_DIR=$built KVRAIL_STORE_CASES=${2:-80} timeout "$seconds" \
        cargo test -q -p kvrail-store --lib --test sim --locked -- "$1") >"$copy/log" 2>&1
}

test_of() {
    awk -v RS= -F '\n' -v number="$1" '$1 ~ "^" number " " { print $5 }' "$table"
}

numbers=("$@")
[[ $# -gt 0 ]] || mapfile -t numbers < <(sed -n 's/^\([0-9]\+\) .*/\1/p' "$table")
build "the store as it is"
while read -r test cases; do
    [[ -n $test ]] || continue
    begin=$SECONDS
    # Without a bug it goes through all seeds, and not to the first that shows it.
    if ! seconds=$((10 * seconds)) try "$test" "$cases"; then
        echo "$test fails, or takes too long, without any bug" && tail -n 30 "$copy/log" && exit 1
    fi
    echo "passes    $test without a bug ($((SECONDS - begin)) s)"
done < <(for number in "${numbers[@]}"; do test_of "$number"; done | sort -u)
survivors=()
for number in "${numbers[@]}"; do
    rm -rf "$copy/engine/store/src"
    cp -r engine/store/src "$copy/engine/store/src"
    name=$(sed -n "s/^$number /$number /p" "$table")
    read -r test cases <<<"$(plant "$number")"
    build "$name"
    begin=$SECONDS
    status=0
    try "$test" "$cases" || status=$?
    case $status in
        0) survivors+=("$number") && echo "SURVIVED  $name ($test)" ;;
        124) survivors+=("$number") && echo "TIMED OUT $name ($test, $seconds s)" ;;
        *) echo "found     $name ($test, $((SECONDS - begin)) s)" ;;
    esac
done
((${#survivors[@]} == 0)) || exit 1
