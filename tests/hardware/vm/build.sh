#!/usr/bin/env bash
# Makes what a machine boots from, once: tools, emulator, two kernels. Needs apt, and no root.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$vm/packages.sh"
. "$vm/tools.sh"
. "$vm/kernel.sh"

[[ $(dpkg --print-architecture 2>/dev/null) == amd64 ]] || die "needs Debian on amd64"
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # one build at a time
trap 'rm -rf "${apt_root:-$cache/none}"' EXIT
trap 'exit 130' INT TERM

make_part tools make_tools
tools=$(part_folder tools)
make_part qemu make_tree "$suite-backports" "${qemu_packages[@]}"
for kernel in "${kernels[@]}"; do
    make_part "kernel-$kernel" make_kernel "$kernel"
done
# Leftovers of interrupted builds, and parts of recipes that were not used for a month.
rm -rf "$cache"/*.new
find "$cache" -mindepth 1 -maxdepth 1 -name '*-*' -mtime +30 -exec rm -rf {} +
for kernel in "${kernels[@]}"; do
    say "ready: $kernel kernel $(cat "$(part_folder "kernel-$kernel")/version")"
done
