#!/usr/bin/env bash
# On a machine with a CUDA device: the demo and the tests that need one.
#   gpu.sh OUT        with .venv, or with the interpreter at hand when VENV is empty
set -euo pipefail
out=${1:?usage: gpu.sh OUT}
cd "$(dirname "$0")/.."
venv=${VENV-.venv}
if [ -n "$venv" ]; then
    make setup
    PATH="$PWD/$venv/bin:$PATH"
fi
python -c 'import torch; assert torch.cuda.is_available(), "no CUDA device is visible to torch"'
for example in digits chargpt; do
    scripts/demo.sh "$example" "$out"
done
python -m pytest -m gpu
