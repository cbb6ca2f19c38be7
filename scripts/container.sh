#!/usr/bin/env bash
# Build the action's image as GitHub would, and use it as GitHub's runner would: `make container`.
#   BASE_IMAGE=NAME    image to build on; default: the Dockerfile's own where a registry can be reached,
#                      else one made by mmdebstrap
#   WHEELS=FOLDER      also build the image with torch from a folder of wheels, and train with it
#   ROOT_FILES=FILE    keep the root file system that mmdebstrap makes there, or take it from there
#   ARCHITECTURE=arm64 instead of all that: build the image without torch for this other architecture, by an
#                      emulator, and judge with it what this machine ran
# act, where it lies beside the interpreter or on PATH, runs workflows of the documentation with that image.
# An engine that answers is used; where none does, one is installed, started and removed again. Where
# that cannot be done, everything here is skipped, and the reason is the last line.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly CANNOT=77
state=$(mktemp -d)
own_engine=""
own_emulator=""

# shellcheck disable=SC2329 # called by the trap
clean_up() {
    if [ -n "$own_engine" ]; then
        scripts/container/engine.sh stop "$state/engine"
    fi
    if [ -n "$own_emulator" ]; then
        scripts/container/emulator.sh stop "$ARCHITECTURE"
    fi
    rm -rf "$state"
}
trap clean_up EXIT

# A step that cannot be done here ends everything as skipped; a step that fails ends it as failed.
or_skip() {
    local code=0
    "$@" 2>"$state/why" || code=$?
    if [ "$code" = "$CANNOT" ]; then
        echo "skipped: $(tail -1 "$state/why")" >&2
        exit 0
    fi
    [ "$code" = 0 ] || { cat "$state/why" >&2; exit "$code"; }
}

# The first client on PATH that can build with BuildKit, which `RUN --mount` needs.
builder() {
    local folder folders client
    IFS=: read -ra folders <<<"$PATH"
    for folder in "${folders[@]}"; do
        client=$folder/docker
        if [ -x "$client" ] && can_build "$client"; then
            echo "$client"
            return
        fi
    done
    echo "no docker client here can build with BuildKit (docker buildx)" >&2
    return "$CANNOT"
}
# BuildKit was part of the client before version 23, and is a plugin since.
can_build() {
    "$1" buildx version >/dev/null 2>&1 || [ "$("$1" version -f '{{.Client.Version}}' | cut -d. -f1)" -lt 23 ]
}

if ! docker version >/dev/null 2>&1; then
    # its removal is owed from here on, however far the start gets
    own_engine=yes
    or_skip scripts/container/engine.sh start "$state/engine" >"$state/address"
    DOCKER_HOST=$(cat "$state/address")
    export DOCKER_HOST
fi
or_skip builder >"$state/builder"
build() {
    DOCKER_BUILDKIT=1 "$(cat "$state/builder")" build --progress=plain --build-arg "BASE_IMAGE=$base" "$@" \
        >"$state/build.log" 2>&1 || { tail -30 "$state/build.log" >&2; return 1; }
}
identity() {
    docker image inspect --format '{{.Id}}' "$1"
}

# What the image without torch is for, by an emulator: judging. Training runs here, where it takes seconds.
other_architecture() {
    local python base=${BASE_IMAGE:-repro-gate-base:$ARCHITECTURE} image=repro-gate:$ARCHITECTURE
    or_skip scripts/container/emulator.sh start "$ARCHITECTURE" >"$state/emulator"
    own_emulator=$(cat "$state/emulator")
    [ -n "${BASE_IMAGE:-}" ] || BUILDER=$(cat "$state/builder") or_skip scripts/container/base_image.sh "$base" "$ARCHITECTURE"
    build --platform "linux/$ARCHITECTURE" --build-arg TRAINING_REQUIREMENTS= -t "$image" .
    docker image inspect --format '{{.Os}}/{{.Architecture}} {{.Size}}' "$image" |
        awk '{ printf "image without torch for %s: %d MB\n", $1, $2 / 1e6 }'
    git clone --quiet . "$state/clone"
    python=$(realpath -s "$(command -v "${PYTHON:-python3}")")
    (cd "$state/clone" && "$python" -m gate run --config examples/digits/repro-gate.yml --out "$state/ran")
    docker run --rm --platform "linux/$ARCHITECTURE" -v "$state:$state" -w "$state/clone" \
        --entrypoint /opt/repro-gate/bin/python "$image" -I -m gate judge "$state/ran/evidence" \
        --config examples/digits/repro-gate.yml --out "$state/judged" || [ $? = 1 ]
    grep -q '"repeat": "equal"' "$state/judged/verdict.json"
}
if [ -n "${ARCHITECTURE:-}" ]; then
    other_architecture
    exit
fi

base=${BASE_IMAGE:-$(sed -n 's/^ARG BASE_IMAGE=//p' Dockerfile)}
if ! docker image inspect "$base" >/dev/null 2>&1 && ! docker pull -q "$base" >/dev/null 2>&1; then
    base=repro-gate-base:test
    or_skip scripts/container/base_image.sh "$base"
fi
echo "base image: $base"

started=$SECONDS
build --build-arg TRAINING_REQUIREMENTS= -t repro-gate:test .
echo "image without torch, built in $((SECONDS - started)) s:"
docker image inspect --format '{{.Size}}' repro-gate:test | awk '{ printf "  %d MB, of these\n", $1 / 1e6 }'
docker history --format '{{.Size}}\t{{.CreatedBy}}' repro-gate:test | grep -v '^0B' | cut -c1-100

# The same again with a changed source file: every layer but the last has to be the same.
layers() {
    docker image inspect --format '{{range .RootFS.Layers}}{{println .}}{{end}}' "$1"
}
mkdir "$state/changed"
cp -a Dockerfile .dockerignore pyproject.toml README.md LICENSE gate repro_gate container requirements "$state/changed"
echo '# changed' >>"$state/changed/gate/cli.py"
build --build-arg TRAINING_REQUIREMENTS= -t repro-gate:changed "$state/changed"
diff <(layers repro-gate:test) <(layers repro-gate:changed) >"$state/layers" || true
echo "layers that a change of the code rebuilds: $(grep -c '^>' "$state/layers") of $(layers repro-gate:test | grep -c sha256)"
[ "$(grep -c '^>' "$state/layers")" = 1 ] || { echo "error: only the last layer may change" >&2; exit 1; }

REPRO_GATE_BASE_IMAGE=$(identity "$base")
REPRO_GATE_ACTION_IMAGE=$(identity repro-gate:test)
export REPRO_GATE_BASE_IMAGE REPRO_GATE_ACTION_IMAGE
if [ -n "${WHEELS:-}" ]; then
    tar -C "$WHEELS" -c . | docker import - repro-gate-wheels:test >/dev/null
    build --build-arg WHEELS_IMAGE=repro-gate-wheels:test \
        --build-arg TRAINING_REQUIREMENTS=requirements/training-cpu.txt -t repro-gate:torch .
    REPRO_GATE_TORCH_IMAGE=$(identity repro-gate:torch)
    export REPRO_GATE_TORCH_IMAGE
    docker image inspect --format '{{.Size}}' repro-gate:torch | awk '{ printf "image with torch: %d MB\n", $1 / 1e6 }'
fi
"${PYTHON:-python3}" -m pytest -m "docker and not slow" tests/container tests/hostile "$@"
