#!/usr/bin/env bash
# The guest's first process: from the initramfs into the tools tree, which the host shares.

PATH=/bin
box() { /bin/busybox "$@"; }

box mount -t devtmpfs dev /dev
box mount -t proc proc /proc
while read -r module; do
    box insmod "/$module" 2>/dev/null # named twice is no harm
done </order
p9=trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro
box mount -t 9p -o "$p9" tools /lower
box mount -t tmpfs -o mode=0755 upper /upper
box mkdir /upper/data /upper/work
box mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work new /new
box mount --move /dev /new/dev
box mount --move /proc /new/proc
box mount -t 9p -o "$p9" job /new/job
box mount -t 9p -o "$p9" modules /new/usr/lib/modules
exec /bin/busybox switch_root /new /usr/bin/bash /job/guest.sh
