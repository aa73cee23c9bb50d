#!/usr/bin/env bash
# Functions of the VM's scripts: the folders of its parts, and how a part is made whole or not at
# all. Sourced.
# shellcheck disable=SC2034 # variables for those who source it
set -euo pipefail

suite=trixie
kernels=(stable backports)
vm=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-~/.cache}/kvrail-vm

say() { echo "vm: $*" >&2; }

# 125: the machine could not be built or run, which proves nothing about kvrail.
die() {
    say "$*"
    exit 125
}

# The folder of a part. Its name has a hash of the recipe, so an edited recipe makes a new one.
part_folder() {
    local name=$1 recipe
    case $name in
        tools) recipe=$(cat "$vm/packages.sh" "$vm/tools.sh") ;;
        qemu) recipe=$(cat "$vm/packages.sh") ;;
        kernel-*) recipe=$(cat "$vm/packages.sh" "$vm/kernel.sh" "$vm/init.sh") ;;
    esac
    echo "$cache/$name-$(sha256sum <<<"$suite $name $recipe" | head -c 12)"
}

# Makes a part with a command that gets a folder to fill, unless it is there. The folder has its
# name only when it is full: an interrupted build leaves nothing that could pass for a part.
make_part() {
    local folder
    folder=$(part_folder "$1")
    if [[ ! -d $folder ]]; then
        local began=$SECONDS
        rm -rf "$folder.new"
        mkdir -p "$folder.new"
        "${@:2}" "$folder.new"
        mv "$folder.new" "$folder"
        say "made $1 in $((SECONDS - began)) s"
    fi
    touch "$folder"
}

# Runs a program of an unpacked tree with that tree's own libraries, not with the host's.
in_tree() {
    local tree=$1 program=$2 place
    local libraries=$tree/usr/lib/x86_64-linux-gnu
    for place in bin sbin; do
        [[ -e $tree/usr/$place/$program ]] || continue
        "$tree/usr/lib64/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$libraries" \
            --argv0 "$program" "$tree/usr/$place/$program" "${@:3}"
        return
    done
    die "no program $program in $tree"
}
