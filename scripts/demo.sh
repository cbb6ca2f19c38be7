#!/usr/bin/env bash
# The whole way on this machine: gate an example, seal the pass with a throw-away key, verify it.
#   demo.sh EXAMPLE OUT
set -euo pipefail
example=${1:?usage: demo.sh EXAMPLE OUT}
out=${2:?usage: demo.sh EXAMPLE OUT}
cd "$(dirname "$0")/.."

# A commit on no branch: HEAD with the learning rate that the drifting example's baseline remembers.
commit_before_the_drift() {
    local script=examples/drifts/train.py index blob tree
    index=$(mktemp -u)
    blob=$(git show "HEAD:$script" | sed 's/^LEARNING_RATE = 0.11 .*/LEARNING_RATE = 0.10/' \
        | git hash-object -w --stdin)
    if [ "$blob" = "$(git rev-parse "HEAD:$script")" ]; then
        echo "error: $script has no LEARNING_RATE = 0.11 to take back" >&2
        return 1
    fi
    GIT_INDEX_FILE=$index git read-tree HEAD
    GIT_INDEX_FILE=$index git update-index --cacheinfo "100644,$blob,$script"
    tree=$(GIT_INDEX_FILE=$index git write-tree)
    rm -f "$index"
    git -c user.name=demo -c user.email=demo@invalid commit-tree "$tree" -p HEAD -m "Before the drift"
}

# beside the folder that the gate makes: it uses none that holds files of somebody else
keys=$out-keys
if [ ! -s "$keys/signing-key.pem" ]; then
    repro-gate keys generate --out "$keys" --allow-plain --comment "throw-away key of make demo"
fi

# --base counts only where the environment is not the baseline's: then that commit runs twice more on
# this machine.  --allow-dirty lets a developer try it in the middle of work.
[ "$example" != declared ] || examples/declared/put-data.sh
base=HEAD
[ "$example" != drifts ] || base=$(commit_before_the_drift)
status=0
repro-gate gate --config "examples/$example/repro-gate.yml" --out "$out" --base "$base" --allow-dirty \
    --signing-key "$keys/signing-key.pem" --allow-plain-key \
    --trusted-keys "$keys/trusted-keys.json" || status=$?

if [ -s "$out/package.dsse.json" ]; then
    printf '\n'
    repro-gate verify "$out/package.tar" --trusted-keys "$keys/trusted-keys.json" \
        --commit "$(git rev-parse HEAD)"
    # as an auditor does months later, without the baseline
    printf '\n'
    repro-gate reproduce "$out/package.tar" --trusted-keys "$keys/trusted-keys.json" \
        --repository . --out "$out/again"
fi
exit "$status"
