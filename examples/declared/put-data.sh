#!/usr/bin/env bash
# Put the data set of this example where repro-gate.yml declares it, outside of every repository.
set -euo pipefail
place=/tmp/repro-gate-example
mkdir -p "$place"
cp "$(dirname "$0")/../data/digits.csv.gz" "$place/digits.csv.gz"
chmod 755 "$place"
chmod 644 "$place/digits.csv.gz"
