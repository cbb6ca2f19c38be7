#!/usr/bin/env bash
# The whole way on this machine: gate an example, seal the pass with a throw-away key, verify it.
#   demo.sh EXAMPLE OUT
set -euo pipefail
example=${1:?usage: demo.sh EXAMPLE OUT}
out=${2:?usage: demo.sh EXAMPLE OUT}
cd "$(dirname "$0")/.."

mkdir -p "$out"
if [ ! -s "$out/keys/signing-key.pem" ]; then
    repro-gate keys generate --out "$out/keys" --allow-plain --comment "throw-away key of make demo"
fi

# --base is used only where the environment is not the baseline's: then the commit runs twice more
# on this machine, and that decides.  --allow-dirty lets a developer try it in the middle of work.
status=0
repro-gate gate --config "examples/$example/repro-gate.yml" --out "$out" --base HEAD --allow-dirty \
    --signing-key "$out/keys/signing-key.pem" --allow-plain-key \
    --trusted-keys "$out/keys/trusted-keys.json" || status=$?

if [ -s "$out/package.dsse.json" ]; then
    printf '\n'
    repro-gate verify "$out/package.tar" --trusted-keys "$out/keys/trusted-keys.json" \
        --commit "$(git rev-parse HEAD)"
fi
exit "$status"
