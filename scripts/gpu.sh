#!/usr/bin/env bash
# On a machine with a CUDA device: the first half hour, part by part, and a page of what was seen.
#   gpu.sh [OPTION ...] [PART ...]      all parts where none is named; --dry runs on the CPU
# In .venv; VENV= takes the interpreter at hand, with nothing installed. WHEELS=folder takes packages
# that this interpreter lacks from there, so that a machine without network can do it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV-.venv}
# what the caller carries in PYTHONPATH stays, behind this project
export PYTHONPATH="$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if [ -n "$venv" ]; then
    make setup VENV="$venv"
    PATH="$PWD/$venv/bin:$PATH"
elif [ -n "${WHEELS:-}" ]; then
    carried=$(mktemp -d)
    trap 'rm -rf "$carried"' EXIT
    # the account that trains reads it too
    chmod 755 "$carried"
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir \
        --target "$carried" "$WHEELS"/*.whl
    PYTHONPATH="$PYTHONPATH:$carried"
fi
python3 - <<'EOF'
import importlib.util
import sys

needed = "cryptography jinja2 numpy pydantic pytest requests rich torch typer yaml".split()
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"error: this Python lacks {', '.join(missing)}")
EOF
python3 -m gpu_check "$@"
