#!/usr/bin/env bash
# Build an image of the action from this tree, push it, and print it by its digest.
#   release_image.sh NAME TAG [full|slim]      slim: without torch, for slim/action.yml
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?the image without a tag, such as ghcr.io/owner/repro-gate}
tag=${2:?a tag}
kind=${3:-full}
case $kind in
full) arguments=() description="A reproducibility gate for training code, with CUDA torch for the training" ;;
slim) arguments=(--build-arg TRAINING_REQUIREMENTS=) description="A reproducibility gate for training code, without torch" ;;
*) echo "error: $kind is neither full nor slim" >&2 && exit 2 ;;
esac
version=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' gate/records/version.py)
labels=("title=${name##*/}" "description=$description" "licenses=Apache-2.0" "version=${version:?}"
    "revision=$(git rev-parse HEAD)" "source=${SOURCE_URL:-}")
for label in "${labels[@]}"; do
    arguments+=(--label "org.opencontainers.image.$label")
done
docker build "${arguments[@]}" --tag "$name:$tag" . >&2
docker push --quiet "$name:$tag" >&2
# an image knows its digest once it was pushed, one for each name
docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$name:$tag" |
    grep -xE "$name@sha256:[0-9a-f]{64}"
