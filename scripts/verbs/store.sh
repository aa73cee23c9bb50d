#!/usr/bin/env bash
# The keyed store's proofs: scripts/dev store <name> [how many] [seed]; `store list` lists them.
set -euo pipefail

names=(model crash cut kill rot misdirect wrap twins hostile death identity full odd lost-member
    budget pools prefix drives soak mutants speed recovery upgrade)

usage() {
    echo "usage: scripts/dev store <${names[*]}> [how many lives, rounds or hours] [seed]" >&2
    exit 2
}

# Lives on the simulated drive, by the names of their tests; seeds and counts are printed.
lives() {
    KVRAIL_STORE_CASES=$many KVRAIL_STORE_SEED=${seed:-1} \
        cargo test -p kvrail-store --test sim --release --locked -- --nocapture "$@"
}

# Rounds between real processes.
rounds() {
    cargo build -p kvrail -p kvrail-c --locked
    KVRAIL_STORE_ROUNDS=$many ${seed:+env KVRAIL_STORE_SEED="$seed"} \
        cargo test -p kvrail-tests --test flow --locked -- --nocapture "$@"
}

name=${1:-}
[[ -n $name ]] || usage
shift
case $name in
    list) printf '%s\n' "${names[@]}" && exit ;;
    # Hours instead of rounds.
    soak)
        seconds=$(awk -v hours="${1:-2}" 'BEGIN { print hours * 3600 }')
        export KVRAIL_SOAK_SECONDS=$seconds
        cargo build -p kvrail --release --locked
        exec cargo test -p kvrail-tests --test flow --release --locked -- --nocapture store::soak
        ;;
    mutants | upgrade) exec "scripts/store/$name.sh" "$@" ;;
    speed | recovery)
        exec cargo run --release --locked -p kvrail-store --example "$name" -- "$@"
        ;;
esac
# Numbers of lives or rounds in the long form, where the command line has none.
declare -A long=([model]=20000 [crash]=10000 [cut]=40 [kill]=50 [rot]=2000 [misdirect]=2000
    [wrap]=500 [twins]=20 [hostile]=100 [death]=10000 [identity]=1 [full]=100 [odd]=8
    [lost-member]=20 [budget]=200 [pools]=200 [prefix]=1 [drives]=20)
[[ -n ${long[$name]:-} ]] || usage
many=${1:-${long[$name]}}
seed=${2:-}
case $name in
    model) lives crash::model ;;
    crash) lives crash::crash crash::replays ;;
    cut) lives cut:: ;;
    kill) rounds store::kill ;;
    rot) lives faults::rot ;;
    misdirect) lives faults::misdirect faults::failing faults::a_drive ;;
    wrap)
        lives reclaim::wrap reclaim::hot reclaim::held reclaim::a_ring reclaim::moved \
            start::epochs start::the_last
        ;;
    budget)
        lives budget::
        rounds store::budget
        ;;
    pools)
        lives pools:: cut::cut_with_pools
        rounds store::pools
        ;;
    prefix) cargo test -p kvrail-replay --release --locked -- --nocapture ;;
    twins) rounds store::twins ;;
    hostile) rounds store::hostile ;;
    death) rounds store::death ;;
    identity)
        lives start::
        rounds store::identity
        ;;
    full)
        lives reclaim::full reclaim::holds reclaim::an_index faults::a_drive
        rounds store::full
        ;;
    odd)
        lives odd::
        rounds store::odd
        ;;
    drives)
        lives start::keys_of
        rounds store::drives
        ;;
    lost-member)
        lives start::a_member start::segments
        rounds store::lost
        ;;
esac
