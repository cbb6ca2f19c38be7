"""The names of container images."""

from __future__ import annotations

# https://pkg.go.dev/github.com/distribution/reference, "Grammar": no `..`, no scheme, no empty part
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?"
_PART = "[a-z0-9]+(?:(?:[.]|_|__|-+)[a-z0-9]+)*"
_TAG = ":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
# a name that identifies the exact bytes: `name@sha256:…` in a registry, or an image's own id
IMAGE_BY_DIGEST = rf"^(?:(?:{_HOST}/)?{_PART}(?:/{_PART})*(?:{_TAG})?@)?sha256:[0-9a-f]{{64}}$"
