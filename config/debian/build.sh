#!/usr/bin/env bash
# The Debian package of a built binary: config/debian/build.sh BINARY FOLDER [VERSION]. Prints its
# path.
set -euo pipefail

binary=${1:?the binary, as target/release/kvrail}
out=${2:?where to, as target/packages}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for tool in dpkg-deb objdump strip gzip; do
    if ! command -v "$tool" >/dev/null; then
        echo "deb: no $tool; install dpkg and binutils" >&2
        exit 1
    fi
done

version=${3:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
architecture=$(dpkg --print-architecture)
# The same files give the same package: times are those of the commit.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
umask 022
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
put() { install -D -m "$1" "$2" "$tree/$3"; }

install -D -m 755 -s "$binary" "$tree/usr/bin/kvrail"
put 644 config/systemd/kvrail.service usr/lib/systemd/system/kvrail.service
put 644 config/systemd/kvrail-target.service usr/lib/systemd/system/kvrail-target.service
put 644 config/host/sysusers.conf usr/lib/sysusers.d/kvrail.conf
put 644 config/host/udev.rules usr/lib/udev/rules.d/90-kvrail.rules
install -d "$tree/etc/kvrail/kvrail.toml.d"
"$tree/usr/bin/kvrail" config default >"$tree/etc/kvrail/kvrail.toml"
doc=usr/share/doc/kvrail
put 644 config/debian/copyright "$doc/copyright"
put 644 docs/service.md "$doc/README.md"
put 644 docs/runbooks.md "$doc/runbooks.md"
for file in config/host/*.conf config/examples/*.toml config/grafana/*.json \
    config/prometheus/*.yaml; do
    put 644 "$file" "$doc/examples/$(basename "$file")"
done
gzip -9n <CHANGELOG.md >"$tree/$doc/CHANGELOG.md.gz"
# The builder is the maintainer, from the variables of Debian's tools.
maintainer="${DEBFULLNAME:-The kvrail authors} <${DEBEMAIL:-kvrail@localhost}>"
# The changelog in Debian's form has the release alone.
gzip -9n >"$tree/$doc/changelog.gz" <<END
kvrail ($version) unstable; urgency=medium

  * This release; CHANGELOG.md.gz beside this file has its changes.

 -- $maintainer  $(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" -R)
END

# The binary itself prints its man pages and completions.
install -d "$tree"/usr/share/man/man1 "$tree"/usr/share/{bash-completion,zsh,fish}
"$tree/usr/bin/kvrail" man "$tree/usr/share/man/man1"
gzip -9n "$tree"/usr/share/man/man1/*.1
install -d "$tree"/usr/share/{bash-completion/completions,zsh/vendor-completions}
install -d "$tree"/usr/share/fish/vendor_completions.d
completions() { "$tree/usr/bin/kvrail" completions "$1" >"$tree/usr/share/$2"; }
completions bash bash-completion/completions/kvrail
completions zsh zsh/vendor-completions/_kvrail
completions fish fish/vendor_completions.d/kvrail.fish

libc=$(objdump -T "$tree/usr/bin/kvrail" | grep -o 'GLIBC_2[0-9.]*' | sort -V | tail -n 1)
depends="libc6 (>= ${libc#GLIBC_}), libgcc-s1"
# As Debian counts: each file rounded up, each folder one KiB, whatever the file system takes.
kib=$(find "$tree" -type f -printf '%s\n' -o -type d -printf '1\n' |
    awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
install -d "$tree/DEBIAN"
control=$(<config/debian/control.in)
for word in VERSION ARCHITECTURE KIB DEPENDS MAINTAINER; do
    value=${word,,}
    control=${control/@$word@/"${!value}"}
done
echo "$control" >"$tree/DEBIAN/control"
(cd "$tree" && find etc -type f | sed 's|^|/|' | LC_ALL=C sort) >"$tree/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    # Debian's policy names the shells of these scripts.
    sed '1s|.*|#!/bin/sh|' "config/debian/$script" >"$tree/DEBIAN/$script"
    chmod 755 "$tree/DEBIAN/$script"
done
(cd "$tree" && find etc usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) \
    >"$tree/DEBIAN/md5sums"
find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

mkdir -p "$out"
package=$out/kvrail_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$tree" "$package" >/dev/null
echo "$package"
