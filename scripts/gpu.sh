#!/usr/bin/env bash
# On a machine with a CUDA device: the examples through the gate, then the tests that need a GPU.
#   gpu.sh OUT      in .venv; `make gpu VENV=` takes the interpreter at hand, with nothing installed
set -euo pipefail
out=${1:?usage: gpu.sh OUT}
cd "$(dirname "$0")/.."
venv=${VENV-.venv}
if [ -n "$venv" ]; then
    make setup VENV="$venv"
    PATH="$PWD/$venv/bin:$PATH"
else
    shims=$(mktemp -d)
    trap 'rm -rf "$shims"' EXIT
    printf '#!/bin/sh\nexec env PYTHONPATH="%s" python3 -m gate "$@"\n' "$PWD" > "$shims/repro-gate"
    chmod +x "$shims/repro-gate"
    PATH="$shims:$PATH"
fi
python3 - <<'EOF'
import importlib.util
import sys

needed = "cryptography jinja2 numpy pydantic pytest requests rich torch typer yaml".split()
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"error: this Python lacks {', '.join(missing)}")
import torch

if not torch.cuda.is_available():
    sys.exit("error: torch sees no CUDA device")
print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}")
EOF
for example in digits chargpt; do
    # a baseline for this device may not be committed: then the commit itself, run again, decides
    scripts/demo.sh "$example" "$out-$example"
done
python3 -m pytest -m gpu
