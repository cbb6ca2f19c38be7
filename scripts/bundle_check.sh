#!/usr/bin/env bash
# Keyless seals as others read them: the JavaScript clients of Sigstore verify bundles that the gate made, and refuse
# damaged ones. Installed in build/, kept there.
set -euo pipefail

bin=${1:?folder of the environment, such as .venv/bin}
tools=build/bundle-check

for program in node npm; do
  command -v "$program" >/dev/null || { echo "skipped: bundle-check needs $program, which is not here"; exit 0; }
done

mkdir -p "$tools"
npm install --silent --no-audit --no-fund --no-package-lock --prefix "$tools" \
  @sigstore/bundle@4.0.0 @sigstore/protobuf-specs@0.5.2 @sigstore/verify@3.1.1

SIGSTORE_JS="$tools/node_modules" "$bin"/python -m pytest -q -n 0 tests/package/test_package_bundle_elsewhere.py
