#!/usr/bin/env bash
# The Python wheel with the sidecar's binary in it: scripts/dev wheel [dev|release].
set -euo pipefail

profile=${1:-release}
target=$(realpath -ms "${CARGO_TARGET_DIR:-target}")
tools=$target/python/tools
# install_tool PROGRAM PACKAGE...: into the tools' folder, unless the program is there.
install_tool() {
    [[ -x $tools/bin/$1 ]] && return
    python3 -m venv "$tools"
    "$tools/bin/pip" install -q "${@:2}"
}
install_tool maturin "maturin>=1.9,<2"
export PATH=$tools/bin:$PATH

if [[ $profile == dev ]]; then
    cargo build -q --locked -p kvrail
    built=$target/debug/kvrail options=() linked=()
else
    # A wheel that is linked here may need this host's glibc; Zig links for glibc 2.28 and newer.
    install_tool cargo-zigbuild "cargo-zigbuild>=0.24,<1" "ziglang>=0.15,<0.18"
    triple=x86_64-unknown-linux-gnu
    cargo zigbuild -q --locked --profile "$profile" -p kvrail --target "$triple.2.28"
    built=$target/$triple/$profile/kvrail
    options=(--zig --target "$triple" --compatibility manylinux_2_28)
    # Python before 3.14 ends daemon threads by unwinding them with libgcc_s. Zig would link an
    # unwinder of its own, which does not know libgcc_s's contexts: the process would crash.
    linked=(-- -C "link-arg=$(realpath "$(cc -print-file-name=libgcc_s.so.1)")")
fi
install -D -m 755 -s "$built" ffi/python/python/kvrail/bin/kvrail
rm -f "$target"/wheels/kvrail-*.whl
maturin build -q --locked --strip --profile "$profile" "${options[@]}" \
    --manifest-path ffi/python/Cargo.toml --out "$target/wheels" "${linked[@]}"
[[ $profile == dev ]] || python3 - "$target"/wheels/kvrail-*.whl <<'END'
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
(library,) = [name for name in wheel.namelist() if name.endswith(".abi3.so")]
if b"\0libgcc_s.so.1\0" not in wheel.read(library):
    sys.exit(f"{library} is not linked with libgcc_s: daemon threads would crash a program's end")
END
ls "$target"/wheels/kvrail-*.whl
