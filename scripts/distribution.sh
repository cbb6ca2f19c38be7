#!/usr/bin/env bash
# The source archive and the wheel: built, looked at by twine, and each installed into a bare environment of its own,
# where the program has to start from another folder.
#   distribution.sh FOLDER
set -euo pipefail
folder=$(realpath -m "${1:?usage: distribution.sh FOLDER}")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --only-binary :all: --no-deps --require-hashes -r requirements/publish.txt
rm -rf "$folder"
# only what git has: an old build folder would be packed too
mkdir "$work/source"
git archive HEAD | tar -x -C "$work/source"
"$work/tools/bin/uv" build --quiet --build-constraints requirements/build.txt --require-hashes --out-dir "$folder" "$work/source"
"$work/tools/bin/twine" check --strict "$folder"/*.whl "$folder"/*.tar.gz

version=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' gate/system/version.py)
for made in "$folder"/*.whl "$folder"/*.tar.gz; do
    "$work/tools/bin/uv" venv --quiet --clear "$work/bare"
    "$work/tools/bin/uv" pip install --quiet --python "$work/bare/bin/python" -c requirements/constraints.txt "$made"
    (cd "$work" && bare/bin/repro-gate --version | grep -F "$version" && bare/bin/repro-gate schema > /dev/null)
    echo "$(basename "$made"): installed, starts"
done
