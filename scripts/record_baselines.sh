#!/usr/bin/env bash
# Record the baselines of the examples for the machine at hand (EXAMPLES="digits" for some).
# The drifting example is recorded with the learning rate that its baseline remembers, in a
# temporary clone, since a baseline is only ever made from a commit.
set -euo pipefail
cd "$(dirname "$0")/.."
reason=${REASON:-recorded by make baselines}
root=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

git clone --quiet --no-hardlinks "$root" "$scratch/clone"
cd "$scratch/clone"
# who accepts them, whoever calls this
git config user.name "the repro-gate authors"
unset GITHUB_ACTIONS
sed -i 's/^LEARNING_RATE = .*/LEARNING_RATE = 0.10/' examples/drifts/train.py
git -c user.name=baseline -c user.email=baseline@invalid commit --quiet --all \
    --message "The learning rate that the baseline remembers" || true
examples/declared/put-data.sh
for example in ${EXAMPLES:-digits chargpt drifts declared resumes}; do
    why=$reason
    [ "$example" != drifts ] || why="$reason, with LEARNING_RATE = 0.10 in a temporary commit"
    repro-gate baseline record --config "examples/$example/repro-gate.yml" \
        --out "$scratch/out" --reason "$why"
    # the new folder as a whole: an entry that recording dropped goes here too
    mkdir -p "$root/examples/$example/.repro-gate"
    rm -rf "$root/examples/$example/.repro-gate/baseline"
    cp -r "examples/$example/.repro-gate/baseline" "$root/examples/$example/.repro-gate/"
    git checkout --quiet -- . && git clean --quiet -fd
done
