#!/bin/sh
# Refuse manifests that name an image by tag, or by the placeholder of these examples.
#
#   check.sh FILE...
set -eu

[ $# -gt 0 ] || { echo "usage: check.sh FILE..." >&2; exit 2; }
status=0
for file in "$@"; do
  images=$(sed -n 's/^[[:space:]]*\(- \)\{0,1\}image:[[:space:]]*//p' "$file" | tr -d "\"'")
  if [ -z "$images" ]; then
    echo "$file: names no image" >&2
    status=1
  fi
  for image in $images; do
    digest=${image##*@sha256:}
    if [ "$digest" = "$image" ] || [ -n "$(printf %s "$digest" | tr -d 0-9a-f)" ] ||
      [ ${#digest} -ne 64 ]; then
      echo "$file: $image is not named by digest (NAME@sha256:...)" >&2
      status=1
    elif [ -z "$(printf %s "$digest" | tr -d 0)" ]; then
      echo "$file: $image is the placeholder: put the digest of your image there" >&2
      status=1
    fi
  done
done
exit "$status"
