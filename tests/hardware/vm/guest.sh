#!/usr/bin/env bash
# Sets up the machine from inside, runs the job, leaves its exit status, switches the machine off.

export PATH=/usr/sbin:/usr/bin:/usr/local/bin HOME=/root TERM=linux LANG=C.UTF-8
cd /root || exit

end() {
    [[ -z ${1:-} ]] || echo "$1" >/out/status
    sync
    poweroff -f
}
trouble() {
    echo "guest: $*" | tee -a /out/log >/dev/kmsg
    end 125
    exit
}

# Work of a first process.
be_first() {
    mount -t sysfs sys /sys
    mkdir -p /dev/pts /dev/shm /dev/hugepages
    mount -t devpts -o gid=5,mode=620 devpts /dev/pts
    mount -t tmpfs -o mode=1777 shm /dev/shm
    mount -t tmpfs -o mode=1777 tmp /tmp
    mount -t hugetlbfs none /dev/hugepages
    mount -t cgroup2 none /sys/fs/cgroup
    mount -t debugfs none /sys/kernel/debug
    ln -sf /proc/self/fd /dev/fd
    modprobe configfs && mount -t configfs none /sys/kernel/config
    hostname vm
    ip link set lo up
    ulimit -l unlimited
    ulimit -n 65536
}

# With --systemd the first process becomes systemd, and this script its service.
if [[ -e /job/systemd && $$ == 1 ]]; then
    # What a boot before this one left in the root.
    [[ ! -e /job/programs/root.tar ]] || tar -C / -xf /job/programs/root.tar
    cat >/etc/systemd/system/job.service <<END
[Unit]
After=$(</job/systemd)
[Service]
ExecStart=/usr/bin/bash /job/guest.sh
LimitMEMLOCK=infinity
LimitNOFILE=65536
END
    systemd-sysusers
    mkdir -p /etc/systemd/system/multi-user.target.wants
    ln -sf ../job.service /etc/systemd/system/multi-user.target.wants/
    exec /usr/lib/systemd/systemd --unit=multi-user.target
fi

p9=trans=virtio,version=9p2000.L,msize=512000,cache=none
mount -t 9p -o "$p9" out /out || trouble "no folder for results"
[[ -e /job/systemd ]] || be_first

# The monitor's port, which has no name without udev.
for port in /sys/class/virtio-ports/*; do
    [[ $(cat "$port/name" 2>/dev/null) != monitor ]] || ln -s "${port##*/}" /dev/monitor
done

# Controllers come up in parallel, so kernel names have no order; all must be there.
modprobe nvme || trouble "no nvme driver"
controllers=$(</job/controllers)
for ((tenths = 0; ; tenths++)); do
    live=$(grep -sl live /sys/class/nvme/nvme*/state | wc -l)
    ((live < controllers)) || break
    ((tenths < 300)) || trouble "$live of $controllers NVMe controllers came up"
    sleep 0.1
done

touch /out/started
echo "guest: ready after $(cut -d' ' -f1 /proc/uptime) s" >/dev/kmsg
if [[ -e /job/command ]]; then
    bash -c "$(</job/command)" </dev/null >>/out/log 2>&1
    end $?
else
    setsid -c bash --norc </dev/hvc0 >/dev/hvc0 2>&1
    end 0
fi
