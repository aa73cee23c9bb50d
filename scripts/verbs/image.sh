#!/usr/bin/env bash
# A container image (OCI) of the Debian package, no registry: scripts/dev image [DEB] [FOLDER].
set -euo pipefail

skip() {
    echo "skipped: the container image: $1"
    exit 0
}

for tool in mmdebstrap umoci dpkg-deb unshare; do
    command -v "$tool" >/dev/null ||
        skip "no $tool (apt-get install mmdebstrap umoci dpkg util-linux)"
done
((EUID == 0)) || skip "making a Debian root needs root"

target=${CARGO_TARGET_DIR:-target}
out=${2:-$target/packages}
mkdir -p "$out"
package=${1:-}
if [[ -z $package ]]; then
    cargo build --release --locked -p kvrail
    package=$(config/debian/build.sh "$target/release/kvrail" "$out")
fi
# The same package gives the same image, as long as Debian's own packages are the same.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=$(dpkg-deb --field "$package" Version)
architecture=$(dpkg-deb --field "$package" Architecture)
# The C library of the builder, whose version the package requires.
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:?no Debian}")
work=$(mktemp -d)
sidecar=
finish() {
    if [[ -n $sidecar ]]; then
        kill -KILL -- "-$sidecar" 2>/dev/null || true
        wait "$sidecar" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap finish EXIT
# Users of images go through it on their way to the root.
chmod 755 "$work"

# The package's own script makes no user where there is one; orchestrators need a numeric user.
make_user='chroot "$1" useradd --uid 64000 --user-group --no-create-home --shell /usr/sbin/nologin \
    --comment "kvrail sidecar" kvrail'
install_package='cp "$PACKAGE" "$1/kvrail.deb" && chroot "$1" dpkg --install /kvrail.deb &&
    rm "$1/kvrail.deb"'
PACKAGE=$(realpath "$package") mmdebstrap --quiet --variant=essential --include=passwd,util-linux \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook="$make_user" --customize-hook="$install_package" "$suite" "$work/root.tar"
# mmdebstrap leaves /run empty.
install -d -m 750 "$work/more/run/kvrail"
tar --append --mtime="@$SOURCE_DATE_EPOCH" --owner=64000 --group=64000 --numeric-owner \
    -C "$work/more" -f "$work/root.tar" ./run/kvrail

layout=$work/layout
umoci init --layout "$layout"
umoci new --image "$layout:$version"
created=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
umoci raw add-layer --image "$layout:$version" --history.created "$created" "$work/root.tar"
rm "$work/root.tar"
label=org.opencontainers.image
umoci config --image "$layout:$version" --created "$created" --history.created "$created" \
    --os linux --architecture "$architecture" --config.user 64000:64000 \
    --config.entrypoint /usr/bin/kvrail --config.cmd serve --config.stopsignal SIGTERM \
    --config.volume /run/kvrail --config.label "$label.title=kvrail" \
    --config.label "$label.version=$version" --config.label "$label.licenses=Apache-2.0" \
    --config.label "$label.description=Storage dataplane for KV-cache blocks"
umoci gc --layout "$layout"

# The image is tried as its user: it prints its version, and serves a volume.
umoci unpack --image "$layout:$version" "$work/bundle"
root=$work/bundle/rootfs
inside() {
    # The mounts are this process's alone, and go with it.
    unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" bash -euc '
        mount --rbind /sys "$0/sys"
        exec chroot --userspec=64000:64000 "$0" /usr/bin/kvrail "$@"' "$root" "$@"
}
[[ $(inside --version) == "kvrail $version"* ]]
# A process group of its own, so that it ends whole: unshare holds SIGTERM back.
set -m
inside serve --set metrics.listen=off \
    --set 'volume=[{name="kv", members=["null:1GiB"]}]' >"$work/serve.log" 2>&1 &
sidecar=$!
set +m
for ((turn = 0; ; turn++)); do
    if inside status --format json >"$work/status.json" 2>"$work/status.log"; then
        break
    fi
    if ((turn == 100)) || ! kill -0 "$sidecar" 2>/dev/null; then
        echo "image: its sidecar does not serve:" >&2
        cat "$work/serve.log" "$work/status.log" >&2
        exit 1
    fi
    sleep 0.1
done

# The name that `podman load` gives it.
name=org.opencontainers.image.ref.name
sed -i "s|\"$name\":\"$version\"|\"$name\":\"kvrail:$version\"|" "$layout/index.json"
grep -q "\"kvrail:$version\"" "$layout/index.json"
image=$out/kvrail-$version-$architecture.oci.tar
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    -C "$layout" -cf "$image" .
echo "$image"
