#!/usr/bin/env bash
# The keyed store's proofs: scripts/dev store <name> [cases] [first seed]; `store list` lists them.
set -euo pipefail

names=(model crash cut rot misdirect wrap identity full odd mutants speed)

usage() {
    echo "usage: scripts/dev store <${names[*]}> [cases] [first seed]" >&2
    exit 2
}

# Runs scenarios by the names of their tests; seeds and counts are printed.
run() {
    cargo test -p kvrail-store --test sim --release --locked -- --nocapture "$@"
}

name=${1:-}
[[ -n $name ]] || usage
shift
case $name in
    list) printf '%s\n' "${names[@]}" && exit ;;
    mutants) exec scripts/store/mutants.sh "$@" ;;
    speed) exec cargo run --release --locked -p kvrail-store --example speed -- "$@" ;;
esac
# The long form: so many lives of each scenario.
declare -A long=([model]=20000 [crash]=10000 [cut]=40 [rot]=2000 [misdirect]=2000 [wrap]=500
    [identity]=1 [full]=100 [odd]=8)
[[ -n ${long[$name]:-} ]] || usage
export KVRAIL_STORE_CASES=${1:-${long[$name]}}
export KVRAIL_STORE_SEED=${2:-1}
case $name in
    model) run crash::model ;;
    crash) run crash::crash crash::replays ;;
    cut) run cut:: ;;
    rot) run faults::rot ;;
    misdirect) run faults::misdirect faults::failing faults::a_drive ;;
    wrap) run reclaim::wrap reclaim::hot reclaim::held reclaim::a_ring ;;
    identity) run start:: ;;
    full) run reclaim::full reclaim::holds ;;
    odd) run odd:: ;;
esac
