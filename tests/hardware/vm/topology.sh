#!/usr/bin/env bash
# The machine's NVMe controllers, as arguments of the emulator, and the purpose of each. Sourced.
# shellcheck disable=SC2034,SC2054,SC2154 # variables of boot.sh, arguments with commas

nvme_args=()
controllers=0 slots=0

# A namespace's storage: a sparse file, perhaps with rules by which it fails, under a name of its
# own that later layers can stand on.
disk() {
    local node=$1 size=$2 rules=${3:-} under=$1-file
    truncate -s "$size" "$images/$node.img"
    nvme_args+=(-blockdev "driver=file,node-name=$under,filename=$images/$node.img,\
discard=unmap,cache.no-flush=on")
    if [[ -n $rules ]]; then
        nvme_args+=(-blockdev "driver=blkdebug,node-name=$node-bad,image=$under,config=$rules")
        under=$node-bad
    fi
    nvme_args+=(-blockdev "driver=raw,node-name=$node,file=$under,discard=unmap")
}

# A controller in a slot of its own, so that it can be pulled. Its serial is its name.
controller() {
    slots=$((slots + 1))
    nvme_args+=(-device "pcie-root-port,id=slot-$1,chassis=$slots,slot=$slots")
    [[ $1 != "$late" ]] || return 0
    controllers=$((controllers + 1))
    nvme_args+=(-device "nvme,id=$1,serial=$1,bus=slot-$1,max_ioqpairs=8,msix_qsize=9${2:+,$2}")
}

# A namespace of a controller, on a node.
namespace() {
    [[ $1 != "$late" ]] || return 0
    nvme_args+=(-device "nvme-ns,bus=$1,nsid=$2,drive=$3${4:+,$4}")
}

# Fails reads of byte 2 MiB and writes of byte 4 MiB for good, in sectors of 512 bytes.
bad_sectors() {
    local kind sector
    while read -r kind sector; do
        printf '[inject-error]\nevent = "%s_aio"\niotype = "%s"\n' "$kind" "$kind"
        printf 'sector = "%s"\nerrno = "5"\nonce = "off"\n' "$sector"
    done <<<$'read 4096\nwrite 8192'
}

all_controllers() {
    # Two namespaces and memory of its own: modes, identity, benchmarks.
    disk main1 256M
    disk main2 64M
    controller kvr-main cmb_size_mb=64
    namespace kvr-main 1 main1
    namespace kvr-main 2 main2

    # Pulled and put back: a subsystem keeps the namespace while no controller is there.
    disk pull1 256M
    nvme_args+=(-device nvme-subsys,id=subsys-pull,nqn=pull)
    controller kvr-pull subsys=subsys-pull
    namespace kvr-pull 1 pull1

    # Bad sectors.
    bad_sectors >"$work/bad-sectors"
    disk fault1 256M "$work/bad-sectors"
    controller kvr-fault
    namespace kvr-fault 1 fault1

    # Can be made as slow as one likes while it runs.
    disk slow1 256M
    nvme_args+=(-object throttle-group,id=slow)
    nvme_args+=(-blockdev driver=throttle,node-name=slow1-lane,throttle-group=slow,file=slow1)
    controller kvr-slow
    namespace kvr-slow 1 slow1-lane

    # Data placement: four handles, each with a unit that no test fills.
    disk fdp1 64M
    nvme_args+=(-device "nvme-subsys,id=subsys-fdp,nqn=fdp,fdp=on,fdp.nruh=4,fdp.nrg=1,fdp.runs=1G")
    controller kvr-fdp subsys=subsys-fdp
    namespace kvr-fdp 1 fdp1 'fdp.ruhs=0;1;2;3'

    # Formats: 4 KiB blocks, and blocks with protection information.
    disk format1 128M
    disk format2 128M
    controller kvr-format
    namespace kvr-format 1 format1 logical_block_size=4096,physical_block_size=4096
    namespace kvr-format 2 format2 ms=8,pi=1
}
