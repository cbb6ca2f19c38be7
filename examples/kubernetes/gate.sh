#!/bin/sh
# What a pod of these examples runs: one commit is trained, and its evidence is handed out.
#
# REPOSITORY  what git clones: an address, or a path
# COMMIT      the commit to train; by default the newest one of the default branch
# BASE        the commit that settings and baseline come from, empty for COMMIT itself
# CONFIGS     settings files with blanks between them; JOB_COMPLETION_INDEX counts from 0
# EVIDENCE    a folder that outlives the pod
#
# The pod holds no key: `repro-gate judge` seals elsewhere. Exit code: that of `repro-gate run`.
set -eu

: "${REPOSITORY:?is not set: name the repository that git clones}"
: "${EVIDENCE:?is not set: name a folder that outlives the pod}"
index=${JOB_COMPLETION_INDEX:-0}
case $index in
  *[!0-9]*) echo "JOB_COMPLETION_INDEX is $index, not a number" >&2; exit 2 ;;
esac
# shellcheck disable=SC2086 # words, one for each settings file
set -- ${CONFIGS:-repro-gate.yml}
if [ "$index" -ge $# ]; then
  echo "index $index has no settings file: CONFIGS names $#" >&2
  exit 2
fi
shift "$index"
config=$1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet "$REPOSITORY" "$work/code"
cd "$work/code"
commit=$(git rev-parse --verify --quiet "${COMMIT:-HEAD}^{commit}") || {
  echo "$REPOSITORY has no commit $COMMIT on a branch" >&2
  exit 2
}
git checkout --quiet --detach "$commit"

status=0
if [ -n "${BASE:-}" ]; then
  repro-gate run --config "$config" --base "$BASE" --out "$work/out" || status=$?
else
  repro-gate run --config "$config" --out "$work/out" || status=$?
fi

# evidence of a run that failed helps too; a name without slashes, one for each settings file
target=$EVIDENCE/$commit/$(printf %s "$config" | tr / _)
if [ -d "$work/out/evidence" ]; then
  mkdir -p "$target"
  cp -R "$work/out/evidence/." "$target/"
  echo "evidence: $target"
fi
exit "$status"
