"""The workflow of a pull request: README shows it, and `init` writes it."""

from __future__ import annotations

from typing import Final

from gate.pipelines.files import scalar
from gate.system.gate_names import CHECK, DEFAULT_GATE, artifact_name, check_name, output_folder

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
    timeout-minutes: 360          # 12 times train.timeout_seconds
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


def workflow_path(gate_id: str) -> str:
    """The file of a gate's workflow."""
    return f".github/workflows/{artifact_name(gate_id)}.yml"


def workflow_text(config: str, gate_id: str) -> str:
    """The workflow of a gate; one of several has a name, check, artifact and folder of its own."""
    if gate_id == DEFAULT_GATE:
        return WORKFLOW
    name, check = artifact_name(gate_id), check_name(gate_id)
    step = "      - uses: org/repro-gate@v1\n"
    given = (
        f"        with:\n          config: {scalar(config)}\n          gate_id: {scalar(gate_id)}\n"
    )
    changes = (
        ("name: repro-gate\non:", f"name: {name}\non:"),
        (f"  {CHECK}:\n", f"  {CHECK}:\n    name: {check}\n"),
        (step, step + given),
        ("          name: repro-gate\n", f"          name: {name}\n"),
        (f"{output_folder(DEFAULT_GATE)}/", f"{output_folder(gate_id)}/"),
    )
    text = WORKFLOW
    for old, new in changes:
        text = text.replace(old, new)
    return text
