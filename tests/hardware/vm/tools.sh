#!/usr/bin/env bash
# Makes the tree that the machine runs from. Sourced by build.sh.
# shellcheck disable=SC2154 # variables of common.sh

tool_packages=(
    bash bash-static busybox-static coreutils cpio dmsetup e2fsprogs fio iproute2 jq kmod lvm2 mdadm
    nvme-cli pciutils rdma-core strace util-linux valgrind xz-utils zstd ibverbs-providers libgcc-s1
)

# The tree that the machine runs from, with the folders and links that installing would make.
make_tools() {
    local tree=$1 name
    make_tree "$suite" "${tool_packages[@]}" "$tree"
    mkdir -p "$tree"/{dev,proc,sys,run,tmp,root,job,out,etc/nvme,usr/local/bin,usr/lib/modules}
    for name in bin sbin lib lib64; do
        [[ -e $tree/$name ]] || ln -s "usr/$name" "$tree/$name"
    done
    ln -s bash "$tree/usr/bin/sh" # programs that are scripts name it
    for name in $("$tree/usr/bin/busybox" --list); do
        [[ -e $tree/usr/bin/$name || -e $tree/usr/sbin/$name ]] ||
            ln -s ../../bin/busybox "$tree/usr/local/bin/$name"
    done
    echo 'root:x:0:0:root:/root:/bin/bash' >"$tree/etc/passwd"
    echo 'nobody:x:65534:65534:nobody:/:/bin/sh' >>"$tree/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$tree/etc/group"
    printf '127.0.0.1 localhost\n' >"$tree/etc/hosts"
}
