#!/usr/bin/env bash
# Functions of scripts that see to kvrail's unit in a machine with systemd. Sourced.
# shellcheck disable=SC2034 # variables for those who source it
# shellcheck source=inside.sh
set -euo pipefail
. /job/inside.sh

socket=/run/kvrail/kvrail.sock
file=/etc/kvrail/kvrail.toml
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

step() { echo "== $1, $((SECONDS)) s"; }
fail() {
    echo "FAILED: $*"
    systemctl status --no-pager --full kvrail.service || true
    journalctl --no-pager -u kvrail.service | tail -n 40
    exit 1
}
trap 'fail "line $LINENO"' ERR
apt_get() { apt-get -q -y -o APT::Sandbox::User=root "$@"; }
as() { setpriv --reuid "$1" --regid "$(id -g "$1")" --init-groups "${@:2}"; }
unit() { systemctl show --property "$1" --value kvrail.service; }
main_pid() { unit MainPID; }

# Drives of these serials belong to the sidecar's user.
give_drives() {
    local serial
    for serial; do
        cat >>/etc/udev/rules.d/90-kvrail.rules <<END
SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", ENV{ID_SERIAL_SHORT}=="$serial", \\
    GROUP="kvrail", MODE="0660"
END
    done
    udevadm control --reload
    udevadm trigger --settle --subsystem-match=block
}
