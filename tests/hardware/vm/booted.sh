#!/usr/bin/env bash
# Runs in a machine with systemd, in each of its boots: booted.sh install|late|broken.
# shellcheck source=unit.sh
. /job/programs/unit.sh

blocks=2000
drives=(kvr-main kvr-pull kvr-slow)
endpoint=127.0.0.1:9464
shown=$(mktemp)

# What the endpoint answers to a path; fails where nobody listens.
get() (
    exec 4<>"/dev/tcp/${endpoint/:/\/}"
    printf 'GET %s HTTP/1.0\r\n\r\n' "$1" >&4
    cat <&4
) 2>/dev/null
# metric NAME VALUE: each series of the name has the value.
metric() {
    local series
    series=$(get /metrics | grep "^$1[ {]") || fail "no metric $1"
    echo "$series"
    ! grep -v " $2\$" <<<"$series" >&2 || fail "$1 is not $2"
}
# status EXIT PATTERN: what `kvrail status` ends with and shows.
status() {
    local code=0
    kvrail status >"$shown" 2>&1 || code=$?
    [[ $code == "$1" ]] || fail "status ended with $code: $(<"$shown")"
    grep -m 1 -e "$2" "$shown" || fail "status shows no '$2': $(<"$shown")"
}
# The journal of this boot has a line.
journal() {
    local lines
    lines=$(journalctl --no-pager -o cat -b -u kvrail.service)
    grep -m 1 -e "$1" <<<"$lines" || fail "the journal has no '$1'"
}
# until_true SECONDS COMMAND...
until_true() {
    local end=$((SECONDS + $1))
    until "${@:2}" >/dev/null 2>&1; do
        ((SECONDS < end)) || fail "not within $1 s: ${*:2}"
        sleep 0.1
    done
}
in_state() { [[ $(unit ActiveState) == "$1" ]]; }
waits() { in_state activating && [[ $(unit StatusText) == waiting\ for* ]]; }
has_restarted() { (($(unit NRestarts) >= $1)); }
all_well() { kvrail status; }

# It serves, with each drive, each block and no trouble.
whole() {
    until_true "$1" in_state active
    until_true 30 all_well
    metric kvrail_ready 1
    metric kvrail_device_up 1
    kvrail store status --format json >"$shown"
    jq -e ".. | .blocks? | numbers | select(. == $blocks)" "$shown" >/dev/null ||
        fail "not $blocks blocks: $(<"$shown")"
    echo "serves $blocks blocks"
}
# The next boot has this root and these drives.
reboot() {
    journalctl --no-pager -o short-monotonic -b -u kvrail.service >/out/journal
    local path
    for path in $(dpkg -L kvrail); do
        [[ -d $path ]] || echo "${path#/}"
    done >"$shown"
    tar -C / -cf /out/root.tar -T "$shown" etc var/lib/dpkg
    : >/out/cut
    systemctl reboot 2>/dev/null
    sleep infinity
}

install() {
    step "install"
    apt_get install /job/programs/kvrail_1-1_amd64.deb >/dev/null
    give_drives "${drives[@]}"
    local paths=() serial
    for serial in "${drives[@]}"; do
        paths+=("$(namespace "$serial" 1)")
    done
    as kvrail kvrail volume create kv --kind store --segment 8MiB --block-mean 2KiB --quiet \
        "${paths[@]}"
    cat >>"$file" <<END
[[volume]]
name = "kv"
members = [$(printf '"serial:%s/1", ' "${drives[@]}")]
END
    systemctl enable --now kvrail.service
    /job/programs/kvrail-actor fill "$socket" kv fill 0 "$blocks" 1024
    whole 1
    reboot
}

late() {
    step "a boot without kvr-slow"
    [[ -z $(namespace kvr-slow 1) ]] || fail "kvr-slow is there"
    until_true 60 waits
    sleep 30
    waits || fail "it does not wait: $(unit ActiveState), $(unit StatusText)"
    unit StatusText
    journal 'waiting for serial:kvr-slow/1'
    status 4 'systemctl status kvrail'
    ! get /metrics || fail "it serves already"

    step "kvr-slow comes"
    exec 5<>/dev/monitor
    printf '%s\n' '{"execute": "qmp_capabilities"}' '{"execute": "device_add", "arguments":
        {"driver": "nvme", "id": "kvr-slow", "serial": "kvr-slow", "bus": "slot-kvr-slow",
        "drive": "slow1-lane", "max_ioqpairs": 8, "msix_qsize": 9}}' >&5
    until_true 30 namespace_is_there
    whole 60
    journal 'all members are there'
    has_restarted 1 && fail "it failed on the way"
    [[ $(unit StatusText) == serving ]] || fail "$(unit StatusText)"

    step "a reload that is refused"
    local pid
    pid=$(main_pid)
    echo 'no_such_key = 1' >/etc/kvrail/kvrail.toml.d/50-broken.toml
    ! systemctl reload kvrail.service 2>/dev/null || fail "a refused reload looked well"
    [[ $(unit ActiveState) == active && $(main_pid) == "$pid" ]] ||
        fail "a refused reload stopped it"
    status 9 config_refused
    metric kvrail_config_last_reload_successful 0
    metric kvrail_config_on_disk_valid 0
    metric kvrail_ready 1
    journal 'the configuration in force stays'
    reboot
}

broken() {
    step "a boot with a broken file"
    until_true 90 has_restarted 3
    in_state activating || fail "systemd gave it up: $(unit ActiveState)"
    journal 'kvrail.toml.d/50-broken.toml'
    status 4 'the configuration is broken'
    ! kvrail config check >"$shown" 2>&1 || fail "the file is well"
    grep -m 1 'kvrail.toml.d/50-broken.toml' "$shown" || fail "no place: $(<"$shown")"
    status 4 'systemctl status kvrail'
    ! get /metrics || fail "it serves already"

    step "the file is mended"
    rm /etc/kvrail/kvrail.toml.d/50-broken.toml
    local began=$SECONDS
    # The longest pause between two attempts is 30 s.
    until_true 40 in_state active
    echo "active $((SECONDS - began)) s after the file was mended"
    whole 1
    metric kvrail_config_last_reload_successful 1
    metric kvrail_config_on_disk_valid 1
    journalctl --no-pager -o short-monotonic -b -u kvrail.service >/out/journal
}

namespace_is_there() { [[ -n $(namespace kvr-slow 1) ]]; }

"$1"
