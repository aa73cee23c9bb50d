#!/usr/bin/env bash
# Makes the tree that the machine runs from. Sourced by build.sh.
# shellcheck disable=SC2154 # variables of common.sh

tool_packages=(
    apt bash bash-static busybox-static coreutils cpio diffutils dmsetup e2fsprogs fio iproute2 jq
    kmod libc-bin lvm2 mdadm nvme-cli passwd pciutils perl-base rdma-core strace systemd udev
    util-linux valgrind xz-utils zstd ibverbs-providers libgcc-s1
)

# The tree that the machine runs from, with the folders and links that installing would make. Its
# dpkg counts what was unpacked as installed, so that packages can be installed on top.
make_tools() {
    local tree=$1 name deb
    fetch "$suite" "${tool_packages[@]}"
    mkdir -p "$tree/var/lib/dpkg/info" "$tree/var/lib/dpkg/updates"
    for deb in "$apt_root"/cache/archives/*.deb; do
        dpkg-deb -f "$deb" | sed '/^Package:/a Status: install ok installed'
        echo
        : >"$tree/var/lib/dpkg/info/$(dpkg-deb -f "$deb" Package).list"
    done >"$tree/var/lib/dpkg/status"
    unpack "$tree"
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
    # No first boot, which would enable every service there is.
    echo 6b767261696c0000000000000000076d >"$tree/etc/machine-id"
    printf '127.0.0.1 localhost\n' >"$tree/etc/hosts"
}
