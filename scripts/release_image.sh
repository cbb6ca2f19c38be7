#!/usr/bin/env bash
# The action's images for both architectures, each named by its digest on the only line of stdout.
#   release_image.sh build NAME TAG full|slim amd64|arm64 [MORE ...]     build from this tree and push; slim: without torch
#   release_image.sh join NAME TAG full|slim NAME@sha256:... ...         one name for the images of several architectures
# An image is built on a machine of its own architecture, or by an emulator that the kernel calls. MORE goes to
# `docker buildx build`. SOURCE_URL has to be the repository's address, for the labels.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    sed -n '3,4s/^# *//p' "$0" >&2
    exit 2
}

[ $# -ge 5 ] || usage
command=$1 name=$2 tag=$3 kind=$4
shift 4
case $kind in
full) variant=() description="A reproducibility gate for training code, with CUDA torch for the training" ;;
slim) variant=(--build-arg TRAINING_REQUIREMENTS=) description="A reproducibility gate for training code, without torch" ;;
*) echo "error: $kind is neither full nor slim" >&2 && exit 2 ;;
esac
version=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' gate/system/version.py)
labels=("title=${name##*/}" "description=$description" "licenses=Apache-2.0" "version=${version:?}"
    "revision=$(git rev-parse HEAD)" "source=${SOURCE_URL:?the address of the repository}" "documentation=$SOURCE_URL/blob/v$version/README.md")

# labelled OPTION [PREFIX]: the options that put each label on.
labelled() {
    local label
    for label in "${labels[@]}"; do
        options+=("$1" "${2:-}org.opencontainers.image.$label")
    done
}

# by_digest KEY: print the image by the digest that the JSON on stdin has there.
by_digest() {
    local digest
    digest=$(python3 -c 'import json, sys; print(json.load(sys.stdin).get(sys.argv[1]))' "$1")
    grep -xE "$name@sha256:[0-9a-f]{64}" <<<"$name@$digest" || {
        echo "error: no digest of $name:$tag, but: $digest" >&2
        exit 1
    }
}

build() {
    local architecture=$1 options=() metadata
    case $architecture in
    amd64 | arm64) ;;
    *) echo "error: $architecture is neither amd64 nor arm64" >&2 && exit 2 ;;
    esac
    shift
    labelled --label
    metadata=$(mktemp)
    # Provenance is signed by the workflow. BuildKit's own would make a list out of each image.
    docker buildx build --platform "linux/$architecture" --provenance=false --push --metadata-file "$metadata" \
        --build-arg "RELEASE=$version" "${variant[@]}" "${options[@]}" --tag "$name:$tag" "$@" . >&2
    by_digest containerimage.digest <"$metadata"
    rm "$metadata"
}

join() {
    local options=()
    # GitHub shows the list's own words on the package's page, not those of its images; an engine that keeps Docker's
    # older kind of list leaves them out.
    labelled --annotation index:
    docker buildx imagetools create "${options[@]}" --tag "$name:$tag" "$@" >&2
    docker buildx imagetools inspect --format '{{json .Manifest}}' "$name:$tag" | by_digest digest
}

case $command in
build | join) "$command" "$@" ;;
*) usage ;;
esac
