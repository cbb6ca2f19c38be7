#!/usr/bin/env bash
# Every request of the GitHub client against GitHub's own OpenAPI description: openapi-core reads each
# one, and Prism, a server made from that description, answers them. Installed in build/, kept there.
set -euo pipefail

bin=${1:?folder of the environment, such as .venv/bin}
tools=build/api-check
slice=$tools/slice.json
paths=(
  '/repos/{owner}/{repo}'
  '/repos/{owner}/{repo}/issues/{issue_number}/comments'
  '/repos/{owner}/{repo}/issues/comments/{comment_id}'
  '/repos/{owner}/{repo}/pulls'
  '/repos/{owner}/{repo}/statuses/{sha}'
  '/repos/{owner}/{repo}/git/refs'
  /user
)

for program in node npm; do
  command -v "$program" >/dev/null || { echo "skipped: api-check needs $program, which is not here"; exit 0; }
done

mkdir -p "$tools"
npm install --silent --no-audit --no-fund --no-package-lock --prefix "$tools" \
  @octokit/openapi@23.0.2 @stoplight/prism-cli@5.16.0
"$bin"/pip install --quiet --disable-pip-version-check -c requirements/constraints.txt openapi-core==0.23.1
node scripts/openapi_slice.mjs "$tools"/node_modules/@octokit/openapi/generated/api.github.com.json \
  "$slice" "${paths[@]}"

port=$("$bin"/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$tools"/node_modules/.bin/prism mock --host 127.0.0.1 --port "$port" "$slice" >"$tools"/prism.log 2>&1 &
prism=$!
trap 'kill "$prism"' EXIT

for _ in $(seq 120); do
  kill -0 "$prism" || { echo "error: Prism ended, see $tools/prism.log" >&2; exit 1; }
  (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
  sleep 0.5
done

GITHUB_OPENAPI="$slice" PRISM_URL="http://127.0.0.1:$port" "$bin"/python -m pytest -q tests/system/test_system_github_contract.py
