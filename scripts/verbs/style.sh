#!/usr/bin/env bash
# The house rules alone: sizes, the unsafe fence, rooms, manifests, scripts.
set -euo pipefail

cargo test -p kvrail-tests --test style --locked "$@"
