#!/usr/bin/env bash
# The steps of a pod on its node: node.sh configure|create|serve|wait. The group's part of the
# configuration, and this script, are copied when the pod starts, the node's part whenever the
# sidecar starts: a change of a node's part restarts the sidecar of that node alone.
set -euo pipefail

: "${NODE_NAME:?}"
own=${OWN_FOLDER:-/etc/kvrail}
group=${GROUP_FOLDER:-/etc/kvrail-group}
nodes=${NODES_FOLDER:-/etc/kvrail-nodes}
node=${NODE_FOLDER:-/node}

# As root: folders of the node, which the kubelet makes as root's, and the group's part.
configure() {
    for folder in "$node/socket" "$node/files"; do
        if [ -d "$folder" ]; then
            chown "$OWNER" "$folder"
        fi
    done
    if [ -d "$node/seccomp" ]; then
        profile=$node/seccomp/$SECCOMP_PROFILE
        mkdir -p "$(dirname "$profile")"
        cp "$group/seccomp.json" "$profile.new"
        mv "$profile.new" "$profile"
    fi
    cp "$group/node.sh" "$own/node.sh"
    cp "$group/kvrail.toml" "$own/group.toml"
    cp "$group/volumes.toml" "$own/group-volumes.toml"
    cp "$group/create" "$own/group-create"
}

# The node's part, if there is one, is instead of the group's volumes.
compose() {
    part=$nodes/$NODE_NAME
    volumes=$own/group-volumes.toml
    create=$own/group-create
    : >"$own/node.toml"
    if [ -e "$part.toml" ]; then
        cat "$part.toml" >"$own/node.toml"
        volumes=$own/node.toml
        create=$part.create
    fi
    if ! grep -q '^\[\[volume\]\]' "$volumes"; then
        echo "node $NODE_NAME has no volumes; remedy: name them in nodes.$NODE_NAME, or in" \
            "volumes of its group, or take the group's label from the node" >&2
        exit 3
    fi
    cat "$own/group.toml" "$volumes" >"$own/kvrail.toml.new"
    mv "$own/kvrail.toml.new" "$own/kvrail.toml"
    cat "$create" >"$own/create"
}

# A shell is no init: as process 1 it passes a SIGTERM on itself, and ends after its child.
run() {
    "$@" &
    child=$!
    trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT
    status=0
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do
        status=0
        wait "$child" || status=$?
    done
    trap 'exit 143' TERM INT
    if [ -n "$stopped" ]; then
        exit 143
    fi
    return "$status"
}

# Makes the volumes of which nothing is there. One that is refused keeps this node waiting, after
# the others were made.
create() {
    refused=0
    while read -r name words <&3; do
        if [ -z "$name" ]; then
            continue
        fi
        # The words of one option are several.
        # shellcheck disable=SC2086
        run kvrail volume create "$name" --if-blank $words || refused=$?
    done 3<"$own/create"
    return "$refused"
}

stopped=
trap 'exit 143' TERM INT
case ${1:-} in
    configure)
        configure
        ;;
    create)
        compose
        create
        ;;
    serve)
        compose
        create
        trap - TERM INT
        exec kvrail serve --exit-on-change "$nodes/$NODE_NAME.toml" "$own/node.toml" \
            --exit-within "${EXIT_WITHIN:-0s}"
        ;;
    wait)
        (compose) || true
        echo "node $NODE_NAME is in maintenance: no sidecar runs until its label is taken away"
        while :; do
            run sleep 3600
        done
        ;;
    *)
        echo "usage: node.sh configure|create|serve|wait" >&2
        exit 2
        ;;
esac
