#!/usr/bin/env bash
# Fetches packages of the distribution and unpacks them; installs nothing. Sourced by build.sh.
# shellcheck disable=SC2034,SC2154 # variables shared with common.sh and build.sh

# Programs that run the machine. The distribution's own emulator of this suite loses a race with its
# other virtual CPUs now and then; the one of its backports does not.
qemu_packages=(qemu-system-x86 seabios)

# Apt with folders of its own: no package of the host counts as installed and nothing of the host
# changes. Mirror, keys, proxy and the like are the host's.
apt() {
    local command=$1
    "$command" -q \
        -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt_root/sources" \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts="$apt_root/none" \
        -o Dir::State="$apt_root/state" -o Dir::State::status="$apt_root/status" \
        -o Dir::Cache="$apt_root/cache" -o APT::Sandbox::User= -o APT::Architecture=amd64 \
        -o APT::Architectures::=amd64 -o APT::Install-Recommends=false \
        -o APT::Update::Post-Invoke= -o Acquire::Languages=none -o Acquire::Retries=3 "${@:2}"
}

# The first repository that the host's apt reads a Debian "main" from.
mirror() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --no-release-info --format '$(COMPONENT) $(REPO_URI)' \
        'Created-By: Packages' |
        awk '$1 == "main" && $2 ~ /debian/ && $2 !~ /security/ { print $2; exit }'
}

# Reads the package lists, once in a build.
open_apt() {
    [[ ! -d ${apt_root:-} ]] || return 0
    local from keys=/usr/share/keyrings/debian-archive-keyring.gpg
    from=${KVRAIL_VM_MIRROR:-$(mirror)}
    [[ -n $from ]] || die "no Debian mirror in the host's apt sources; set KVRAIL_VM_MIRROR"
    [[ -r $keys ]] || die "no $keys; install debian-archive-keyring"
    apt_root=$(mktemp -d --suffix .new "$cache/apt.XXXXXX")
    mkdir -p "$apt_root"/{sources,none,state/lists/partial,cache/archives/partial}
    : >"$apt_root/status"
    local name
    for name in "$suite" "$suite-backports"; do
        echo "deb [arch=amd64 signed-by=$keys] $from $name main" >>"$apt_root/sources/vm.list"
    done
    say "reading package lists"
    logged apt apt-get update -o APT::Update::Error-Mode=any
}

# Runs a command in silence, or prints its output when it fails.
logged() {
    "$@" >"$apt_root/log" 2>&1 || {
        tail -n 20 "$apt_root/log" >&2
        die "failed: $*"
    }
}

# Unpacks the content of apt's cache of archives into a folder, and empties the cache.
unpack() {
    local deb
    for deb in "$apt_root"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$1" --no-same-owner \
            --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' \
            --exclude='./usr/share/locale/*' -f -
        rm "$deb"
    done
}

# Fetches packages of a release, and everything they depend on, into apt's cache of archives.
fetch() {
    open_apt
    say "fetching $2 and others"
    logged apt apt-get install -y -d -t "$1" "${@:2}"
}

# A tree with these packages and everything they depend on.
make_tree() {
    local tree=${!#}
    fetch "${@:1:$#-1}"
    unpack "$tree"
}
