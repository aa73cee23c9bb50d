#!/usr/bin/env bash
# Runs in a machine with systemd: the life of a package. life.sh OLD-VERSION NEW-VERSION.
# shellcheck source=unit.sh
set -euo pipefail
. /job/programs/unit.sh

old=/job/programs/kvrail_$1_amd64.deb new=/job/programs/kvrail_$2_amd64.deb
work=$(mktemp -d)
# All files of this system except those of its package manager, its log and its live state.
everything() {
    {
        find / -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache \
            -o -path /var/log -o -path /tmp -o -path /var/tmp \) -prune -o -print
        find /run \( -path /run/systemd -o -path /run/udev -o -path /run/user \) -prune -o -print
    } | sort
}

useradd --create-home engine
useradd --create-home stranger
everything >"$work/before"

step "install"
apt_get install "$old"
getent passwd kvrail >/dev/null || fail "no user kvrail"
[[ $(systemctl is-active kvrail.service) == inactive ]] || fail "it was started"
[[ $(systemctl is-enabled kvrail.service) == disabled ]] || fail "it was enabled"
usermod -a -G kvrail engine
usermod -a -G kvrail stranger

step "set up"
give_drives kvr-main
member=$(namespace kvr-main 1)
[[ $(stat -c %G "$member") == kvrail ]] || fail "$member is of group $(stat -c %G "$member")"
as kvrail kvrail volume create kv --kind store --segment 8MiB --block-mean 2KiB --quiet "$member"
cat >>"$file" <<'END'
[sidecar]
allow_uids = []
[[volume]]
name = "kv"
members = ["serial:kvr-main/1"]
END
allow() { sed -i "s/^allow_uids = .*/allow_uids = [$1]/" "$file"; }
allow "$(id -u engine)"

step "start"
systemctl enable --now kvrail.service || fail "it did not start"
as engine kvrail status
as engine kvrail status --format json >"$work/status"
jq -e '.sandbox.mode == "on"' "$work/status" >/dev/null || fail "no sandbox"

# The unit forbids UNIX sockets for metrics; TCP works.
exec 4<>/dev/tcp/127.0.0.1/9464
printf 'GET /readyz HTTP/1.0\r\n\r\n' >&4
grep -q '200 OK' <&4 || fail "no metrics"
exec 4>&-

# The blocks of 100 GB at 1 MiB each: the new sidecar reads an index of that length.
step "an index of 100,000 blocks"
as engine /job/programs/kvrail-actor fill "$socket" kv fill 0 100000 1024

step "blocks"
mkfifo "$work/end"
as engine /job/programs/kvrail-actor steady "$socket" kv life <"$work/end" >"$work/output" &
client=$!
exec 3>"$work/end"
for ((tenths = 0; tenths < 300; tenths++)); do
    [[ ! -s $work/output ]] || break
    sleep 0.1
done
[[ $(<"$work/output") == running ]] || fail "no block was moved"
sleep 3

step "reload"
first=$(main_pid)
as stranger kvrail status >/dev/null 2>&1 && fail "a stranger was let in"
allow "$(id -u engine), $(id -u stranger)"
systemctl reload kvrail.service
for ((tenths = 0; tenths < 100; tenths++)); do
    ! as stranger kvrail status >"$work/stranger" 2>&1 || break
    sleep 0.1
done
((tenths < 100)) || fail "the reload admitted no client: $(<"$work/stranger")"
[[ $(main_pid) == "$first" ]] || fail "the reload restarted it"

step "a reload that is refused"
cp "$file" "$work/good"
echo 'no_such_key = 1' | cat - "$work/good" >"$file"
! systemctl reload kvrail.service || fail "a refused reload looked well"
[[ $(systemctl is-active kvrail.service) == active && $(main_pid) == "$first" ]] ||
    fail "a refused reload stopped it"
as engine kvrail status >"$work/refused" 2>&1 && fail "status finds no fault"
grep -q config_refused "$work/refused" || fail "no trouble: $(<"$work/refused")"
cp "$work/good" "$file"
systemctl reload kvrail.service || fail "the corrected file is refused"

step "the journal stops and comes back"
journal=(systemd-journald.service systemd-journald{,-dev-log,-audit}.socket)
audited() { journalctl --no-pager -o cat -u kvrail.service | grep -c 'reload by uid'; }
lost() { as engine kvrail status --format json | jq '.sidecar.log_lines_lost'; }
before=$(audited)
systemctl stop "${journal[@]}"
[[ $(systemctl is-active systemd-journald.service) == inactive ]] || fail "the journal runs"
kvrail reload
as engine kvrail status >/dev/null || fail "the sidecar waits for the journal"
systemctl start "${journal[@]}"
[[ $(main_pid) == "$first" && $(systemctl is-active kvrail.service) == active ]] ||
    fail "the journal's stop ended it"
# The kernel keeps lines while systemd keeps the stream: each is read later, or counted as lost.
for ((tenths = 0; tenths < 100; tenths++)); do
    (($(audited) == before && $(lost) == 0)) || break
    sleep 0.1
done
((tenths < 100)) || fail "a line is neither in the journal nor counted"

step "upgrade"
folder=$(stat -c %i /run/kvrail)
apt_get install "$new"
[[ $(dpkg-query -W -f '${Version}' kvrail) == "$2" ]] || fail "the version is not $2"
[[ $(main_pid) != "$first" && $(systemctl is-active kvrail.service) == active ]] ||
    fail "the upgrade did not restart it"
# Containers have the folder mounted: another of the same name would be lost to them.
[[ $(stat -c %i /run/kvrail) == "$folder" ]] || fail "clients in containers lost /run/kvrail"
grep -q '^name = "kv"' "$file" || fail "the configuration was lost"
sleep 5

step "an upgrade to a release that refuses the configuration"
second=$(main_pid)
cp "$file" "$work/good"
echo 'no_such_key = 1' | cat - "$work/good" >"$file"
apt_get install --reinstall "$new" 2>&1 | tee "$work/refused"
grep -q 'the running sidecar was left as it is' "$work/refused" || fail "no message"
[[ $(main_pid) == "$second" && $(systemctl is-active kvrail.service) == active ]] ||
    fail "clients lost a sidecar to a configuration"
cp "$work/good" "$file"
exec 3>&-
wait "$client" || fail "the client failed: $(<"$work/output")"
tail -n 1 "$work/output" | jq -c . | tee /out/tally.json
jq -e '.wrong == []' /out/tally.json >/dev/null || fail "wrong bytes"
jq -e '.interruptions_ms | length == 1' /out/tally.json >/dev/null || fail "no upgrade under load"
jq -e '.cut_off | keys - ["DRAINING"] == []' /out/tally.json >/dev/null ||
    fail "a drain left requests in doubt"
echo "interruption: $(jq '.interruptions_ms[0]' /out/tally.json) ms (aim: 2000)"

step "journal"
journalctl --no-pager -o short-monotonic -u kvrail.service >/out/journal
wanted='the configuration in force stays\|the configuration on the disk would not start'
! grep ' ERROR \|not permitted\|panicked' /out/journal | grep -v "$wanted" ||
    fail "it complained"

step "remove"
apt_get remove kvrail
[[ ! -e /usr/bin/kvrail && ! -e /run/kvrail ]] || fail "program or socket is left"
grep -q '^name = "kv"' "$file" || fail "the configuration went with the program"
[[ -z $(systemctl list-units --all --no-legend 'kvrail*') ]] || fail "systemd knows it still"
apt_get purge kvrail
# The one file that the host made itself.
rm /etc/udev/rules.d/90-kvrail.rules
everything >"$work/after"
left=$(comm -13 "$work/before" "$work/after")
[[ -z $left ]] || fail "left behind: $left"
echo "it lived"
