#!/usr/bin/env bash
# Makes a kernel bootable: its modules, its image unpacked, a first root file system. Sourced.
# shellcheck disable=SC2154 # variables of common.sh and build.sh

# Modules that the first root file system needs to reach the real one.
early_modules=(virtio_pci virtio_console 9pnet_virtio 9p overlay)

# Kernel packages of a release, whatever they are split into, without what installing them needs.
make_kernel() {
    local release=$suite folder=$2 packages version
    [[ $1 == stable ]] || release=$suite-backports
    open_apt
    say "fetching the $1 kernel"
    packages=$(apt apt-get install -s -t "$release" linux-image-amd64 |
        awk '$1 == "Inst" && $2 ~ /^linux-/ && $2 != "linux-image-amd64" { print $2 }')
    [[ -n $packages ]] || die "no kernel in $release"
    # shellcheck disable=SC2086 # a list
    (cd "$apt_root/cache/archives" &&
        logged apt apt-get download -t "$release" $packages)
    unpack "$folder"
    version=$(basename "$folder"/usr/lib/modules/*)
    echo "$version" >"$folder/version"
    [[ -e $folder/lib ]] || ln -s usr/lib "$folder/lib"
    rm -rf "$folder"/lib/modules/"$version"/kernel/{sound,drivers/gpu,drivers/media}
    in_tree "$tools" depmod -b "$folder" "$version"
    unpack_image "$folder" "$version"
    make_initramfs "$folder" "$version"
}

# The kernel as the compressed image holds it: entered directly, it saves seconds of unpacking in
# emulation. The packed kernel is one zstd frame somewhere in the image.
unpack_image() {
    local folder=$1 packed=$1/boot/vmlinuz-$2 offset
    [[ -e $packed ]] || packed=$1/lib/modules/$2/vmlinuz
    while read -r offset; do
        tail -c "+$((offset + 1))" "$packed" |
            in_tree "$tools" zstd -dcq >"$folder/vmlinux" 2>/dev/null || true
        [[ $(head -c 4 "$folder/vmlinux" | tr -d '\177') != ELF ]] || return 0
    done < <(LC_ALL=C grep -abo -P '\x28\xb5\x2f\xfd' "$packed" | cut -d: -f1)
    die "no packed kernel in $packed"
}

# A static shell, the modules that reach the host's folders, and `init.sh`.
make_initramfs() {
    local folder=$1 version=$2 stage=$1/stage module kind file to
    mkdir -p "$stage"/{bin,usr/bin,dev,proc,sys,lower,upper,new}
    cp "$tools/usr/bin/bash-static" "$stage/bin/bash"
    cp "$tools/usr/bin/busybox" "$stage/bin/busybox"
    ln -s /bin/busybox "$stage/usr/bin/env"
    cp "$vm/init.sh" "$stage/init"
    for module in "${early_modules[@]}"; do
        while read -r kind file _; do
            [[ $kind == insmod ]] || continue # else built in
            to=$(basename "$file" .xz)
            in_tree "$tools" xz -dc "$file" >"$stage/$to"
            echo "$to" >>"$stage/order"
        done < <(in_tree "$tools" modprobe -d "$folder" -S "$version" --show-depends "$module")
    done
    (cd "$stage" && find . | in_tree "$tools" cpio -o -H newc -R 0:0 --quiet) \
        >"$folder/initramfs.cpio"
    rm -rf "$stage"
}
