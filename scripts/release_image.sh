#!/usr/bin/env bash
# Build the action's image from this tree, push it, and print it by its digest.
#   release_image.sh NAME TAG
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?the image without a tag, such as ghcr.io/owner/repro-gate}
tag=${2:?a tag}
docker build --label "org.opencontainers.image.revision=$(git rev-parse HEAD)" \
    --label "org.opencontainers.image.source=${SOURCE_URL:-}" --tag "$name:$tag" . >&2
docker push --quiet "$name:$tag" >&2
# an image knows its digest once it was pushed, one for each name
docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$name:$tag" |
    grep -xE "$name@sha256:[0-9a-f]{64}"
