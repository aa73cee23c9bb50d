#!/usr/bin/env bash
# Plants each bug of mutants.txt in a copy of the store; each must be found: [numbers...].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

table=scripts/store/mutants.txt
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
seconds=${KVRAIL_MUTANT_SECONDS:-60}
built=$PWD/target/mutants

git ls-files -co --exclude-standard -- Cargo.toml Cargo.lock .cargo rust-toolchain.toml engine ffi \
    bench tests | tar -cf - -T - | tar -xf - -C "$copy"

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

numbers=("$@")
[[ $# -gt 0 ]] || mapfile -t numbers < <(sed -n 's/^\([0-9]\+\) .*/\1/p' "$table")
survivors=()
for number in "${numbers[@]}"; do
    rm -rf "$copy/engine/store/src"
    cp -r engine/store/src "$copy/engine/store/src"
    name=$(sed -n "s/^$number /$number /p" "$table")
    read -r test cases <<<"$(plant "$number")"
    built_well=0
    (cd "$copy" && CARGO_TARGET_DIR=$built cargo test -q -p kvrail-store --lib --test sim \
        --no-run --locked >"$copy/log" 2>&1) || built_well=1
    if ((built_well)); then
        echo "$name: does not build" && tail -n 30 "$copy/log" && exit 1
    fi
    begin=$SECONDS
    export KVRAIL_STORE_CASES=${cases:-80}
    if (cd "$copy" && CARGO_TARGET_DIR=$built timeout "$seconds" cargo test \
        -q -p kvrail-store --lib --test sim --locked -- "$test" >"$copy/log" 2>&1); then
        survivors+=("$number")
        echo "SURVIVED  $name ($test)"
    else
        echo "found     $name ($test, $((SECONDS - begin)) s)"
    fi
done
((${#survivors[@]} == 0)) || exit 1
