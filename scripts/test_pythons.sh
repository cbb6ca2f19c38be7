#!/usr/bin/env bash
# Run the fast tests under several Pythons, each in an environment of its own: `make test-pythons`.
#   test_pythons.sh PYTHON...      names or paths; each version's environment is .venv-3.12 and so on
# torch is taken as a build for the CPU, from pip's own index or TORCH_INDEX, and never as the build with
# gigabytes of CUDA libraries. Where none can be had, what imports torch is left out and named as skipped.
# Exit code 1 when a test failed, or when no Python was found; the last lines say what was done.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly TORCH_INDEX=${TORCH_INDEX-https://download.pytorch.org/whl/cpu}
readonly FAST="not torch and not gpu and not slow and not docker and not browser"
done=() failed=()

# One exact build: nothing else is ever looked at, and nothing is downloaded to find out.
torch_for_cpu() {
    local pin
    pin=$(sed -n 's/^torch==//p' requirements/constraints.txt)
    [ "$(uname -s)" != Linux ] || pin=$pin+cpu
    "$1" install --quiet --only-binary :all: -c requirements/constraints.txt \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --retries 0 --timeout 20 "torch==$pin" 2>/dev/null
}

for python in "$@"; do
    if ! version=$("$python" -c 'import ensurepip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
        done+=("$python: not here, or without venv (on Debian: apt install python3-venv); left out")
        continue
    fi
    echo "== Python $version"
    venv=.venv-$version
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[test]'
    with="with torch"
    "$venv/bin/python" -c 'import torch' 2>/dev/null || torch_for_cpu "$venv/bin/pip" || with="without torch"
    [ "$with" = "with torch" ] || export REPRO_GATE_TESTS_WITHOUT_TORCH=1
    if "$venv/bin/python" -m pytest -q -n "${WORKERS:-auto}" --dist loadfile --no-loadscope-reorder --timeout 900 -m "$FAST"; then
        done+=("Python $version, $with: passed")
    else
        failed+=("Python $version, $with")
    fi
    unset REPRO_GATE_TESTS_WITHOUT_TORCH
done

[ ${#done[@]} = 0 ] || printf '%s\n' "${done[@]}"
[ ${#failed[@]} = 0 ] || { printf 'failed: %s\n' "${failed[@]}"; exit 1; }
printf '%s\n' "${done[@]}" | grep -q ': passed$' || { echo "error: none of these Pythons is here" >&2; exit 1; }
