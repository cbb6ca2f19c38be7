"""The workflow of a pull request: README shows it, and `init` writes it."""

from __future__ import annotations

from typing import Final

WORKFLOW_PATH: Final = ".github/workflows/repro-gate.yml"
WORKFLOW: Final = """\
name: repro-gate
on:
  pull_request:
  merge_group:                    # a merge queue waits for this check
permissions: {}
concurrency:                      # a new push ends the older run
  group: ${{ github.workflow }}-${{ github.ref }}
  cancel-in-progress: true
jobs:
  gate:
    runs-on: [self-hosted, gpu]   # your runner; ubuntu-latest for a training on a CPU
    timeout-minutes: 60
    permissions:
      contents: read
      pull-requests: write        # the comment
    steps:
      - uses: actions/checkout@v7
        with:
          fetch-depth: 0          # the base commit decides, so it has to be there
          persist-credentials: false
      - uses: org/repro-gate@v1
      - uses: actions/upload-artifact@v7
        if: ${{ !cancelled() }}   # a failed gate is what somebody wants to look at
        with:
          name: repro-gate
          path: repro-gate-out/
          retention-days: 90
"""
