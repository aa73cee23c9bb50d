#!/usr/bin/env bash
# Boots a machine, runs one command in it as root, passes on its output and exit status.
#
#   boot.sh KERNEL [--limit SECONDS] [--out FOLDER] [--programs FOLDER] [--images FOLDER]
#       [--systemd] [--late SERIAL] (--shell | -- COMMAND...)
#
# With --systemd the first process is systemd, and the command a service's; the files of a
# root.tar beside the programs are in place before. With --images the drives' contents are kept
# there, and the command may end the machine: it writes a file /out/cut before it does, and a file
# /out/kill makes this script kill the emulator. With --late the slot of that controller is empty
# until the command plugs it in, and the command does not wait for services. The command sees the
# programs' folder as /job/programs and writes its results to /out. 124: the time limit; 125: the
# machine could not be booted, or died.
# shellcheck disable=SC2054,SC2317 # the emulator's arguments have commas; a trap calls `cleanup`
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$vm/topology.sh"

kernel=${1:?which kernel}
limit=300 out='' programs='' images='' late='' shell=no systemd=no
shift
while [[ ${1:-} == --?* ]]; do
    case $1 in
        --limit) limit=$2 ;;
        --out) out=$2 ;;
        --programs) programs=$2 ;;
        --images) images=$2 ;;
        --late) late=$2 ;;
        --systemd) systemd=yes && shift && continue ;;
        --shell) shell=yes && limit=86400 && break ;;
        *) die "boot.sh: no option $1" ;;
    esac
    shift 2
done
[[ ${1:-} != -- ]] || shift

tools=$(part_folder tools)
qemu=$(part_folder qemu)
system=$(part_folder "kernel-$kernel")
[[ -d $tools && -d $qemu && -d $system ]] || die "not built: scripts/dev vm build"

# Socket paths have a short limit, so the run's files are in the temporary folder.
work=$(mktemp -d)
emulator=''
cleanup() {
    [[ -z $emulator ]] || kill -KILL -- "-$emulator" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
out=${out:-$work/out}
images=${images:-$work}
mkdir -p "$work/job/programs" "$out"
out=$(cd "$out" && pwd)
rm -f "$out"/{status,started,log,cut,kill}
: >"$out/log"

cp "$vm/guest.sh" "$vm/inside.sh" "$work/job/"
[[ -z $programs ]] || cp -r "$programs/." "$work/job/programs/"
[[ $shell == yes ]] || printf '%q ' "$@" >"$work/job/command"
all_controllers
echo "$controllers" >"$work/job/controllers"
modules=capability
# Services that systemd would start besides: catalogues and terminals without a reader.
if [[ $systemd == yes ]]; then
    wanted=multi-user.target
    [[ -z $late ]] || wanted=basic.target
    echo "$wanted" >"$work/job/systemd"
    modules=landlock,capability
    for unit in systemd-hwdb-update systemd-journal-catalog-update ldconfig; do
        modules+=" systemd.mask=$unit.service"
    done
    modules+=" systemd.getty_auto=no"
fi

# A processor with few features: emulated wide vectors are slower than none. Mitigations, address
# randomisation, self tests and the like cost time only; a panic ends the run.
share() { echo "local,path=$1,mount_tag=$2,security_model=none,multidevs=remap${3:-}"; }
args=(
    -nodefaults -no-user-config -display none -no-reboot -machine q35,usb=off,smbus=off
    -accel tcg,thread=multi,tb-size=512 -cpu Nehalem,+rdrand,+pdpe1gb -smp 2 -m 2G
    -L "$qemu/usr/share/qemu" -L "$qemu/usr/share/seabios"
    -kernel "$system/vmlinux" -initrd "$system/initramfs.cpio"
    -serial "file:$out/console" -device virtio-rng-pci -device virtio-serial-pci,id=ports
    -virtfs "$(share "$tools" tools ,readonly=on)"
    -virtfs "$(share "$system/usr/lib/modules" modules ,readonly=on)"
    -virtfs "$(share "$work/job" job ,readonly=on)"
    -virtfs "$(share "$out" out)"
    # The guest's way to this emulator: a monitor, and a port that leads to it.
    -chardev "socket,id=monitor,path=$work/monitor,server=on,wait=off"
    -mon chardev=monitor,mode=control
    -chardev "socket,id=door,path=$work/monitor"
    -device virtserialport,chardev=door,name=monitor
    "${nvme_args[@]}"
    -append "console=ttyS0 loglevel=5 panic=-1 oops=panic reboot=t mitigations=off nokaslr\
 tsc=reliable no_timer_check audit=0 apparmor=0 lsm=$modules nowatchdog cryptomgr.notests\
 init_on_alloc=0 8250.nr_uarts=1 rcupdate.rcu_expedited=1 random.trust_cpu=on rdinit=/init\
 nvme.poll_queues=2 nvme_core.multipath=N hugepages=64"
)

# Becomes the emulator: called in a shell of its own, whose process id is then the emulator's.
start() {
    local libraries=$qemu/usr/lib/x86_64-linux-gnu
    # `setsid` gives it a process group to end; `timeout` ends it even if this script is killed.
    exec setsid timeout --kill-after 5 "$((limit - SECONDS + 1))" \
        "$qemu/usr/lib64/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$libraries" \
        "$qemu/usr/bin/qemu-system-x86_64" "${args[@]}" 2>"$out/emulator"
}

if [[ $shell == yes ]]; then
    args+=(-chardev stdio,id=console,signal=off -device virtconsole,chardev=console)
    [[ ! -t 0 ]] || stty raw -echo
    (start) || true
    [[ ! -t 0 ]] || stty sane
    exit 0
fi

# A machine that does not come up within a minute is started again: emulating several processors
# is not free of races. One that has begun its command never is.
for _ in 1 2 3; do
    rm -f "$work/monitor"
    start </dev/null &
    emulator=$!
    began=$SECONDS
    while kill -0 "$emulator" 2>/dev/null && [[ ! -e $out/started ]]; do
        ((SECONDS - began < 60)) || break
        sleep 0.1
    done
    [[ ! -e $out/started ]] || break
    kill -KILL -- "-$emulator" 2>/dev/null || true
    wait "$emulator" 2>/dev/null || true
    ((SECONDS < limit)) || break
    say "the machine did not come up, once more"
done
tail -n +1 -f --pid "$emulator" "$out/log" &
if [[ $images != "$work" ]]; then
    (while kill -0 "$emulator" 2>/dev/null; do
        [[ ! -e $out/kill ]] || kill -KILL -- "-$emulator"
        sleep 0.1
    done) &
fi
status=0
wait "$emulator" 2>/dev/null || status=$?
emulator=''
wait # for the rest of the log
[[ ! -e $out/cut || -e $out/status ]] || exit 0

[[ ! -e $out/status ]] || exit "$(cat "$out/status")"
tail -n 30 "$out/console" "$out/emulator" >&2
if ((status == 124 || SECONDS >= limit)); then
    say "the time limit of $limit s ended it; the kernel's last messages are above"
    exit 124
fi
die "the machine ended without a status; its last messages are above"
