"""The workflows that users copy: what they keep, when they start, which versions they name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from workflows_in_documents import workflows

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = [
    *sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    *sorted((ROOT / "examples" / "workflows").glob("*.yml")),
]
FORKS_JUDGE = ROOT / "examples" / "workflows" / "forks-judge.yml"
FORKS_RUN = (ROOT / "examples" / "workflows" / "forks-run.yml").read_text("utf-8")
(README_WORKFLOW,) = workflows((ROOT / "README.md").read_text("utf-8"))
# every workflow that checks something by the gate, as its text
GATING = {path.name: path.read_text("utf-8") for path in WORKFLOWS} | {"README": README_WORKFLOW}
GATE_STEP = re.compile(r"'uses': '(org/repro-gate|\./)|repro-gate gate ")
PINNED_MAJOR = re.compile(r"uses: ([\w-]+/[\w-]+)@[0-9a-f]{40} # (v\d+)\.")


def _triggers(workflow: Mapping[Any, Any]) -> set[str]:
    # the key `on` is a truth value to YAML 1.1
    on = workflow[True]
    return {on} if isinstance(on, str) else set(on)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in GATING.items()])
def test_what_a_gate_wrote_can_be_downloaded_whatever_the_verdict(text: str) -> None:
    for job in yaml.safe_load(text)["jobs"].values():
        gates = [step for step in job["steps"] if GATE_STEP.search(str(step))]
        kept = [step for step in job["steps"] if "upload-artifact@" in step.get("uses", "")]
        whole = [step for step in kept if step["with"]["path"] == "repro-gate-out/"]
        if not gates or "'mode': 'run'" in str(gates):
            continue
        assert [step["if"] for step in whole] == ["${{ !cancelled() }}"]
        assert [step["with"]["retention-days"] for step in whole] == [90]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in GATING.items()])
def test_a_check_of_pull_requests_runs_in_a_merge_queue_too(text: str) -> None:
    triggers = _triggers(yaml.safe_load(text))
    # evidence of forks is judged by another workflow, which no merge queue starts: docs/forks.md
    if "pull_request" in triggers and text != FORKS_RUN:
        assert "merge_group" in triggers
        assert "cancel-in-progress: true" in text


def test_the_readme_names_the_major_versions_that_the_examples_pin() -> None:
    pinned = {
        (name, version)
        for path in WORKFLOWS
        for name, version in PINNED_MAJOR.findall(path.read_text("utf-8"))
    }
    shown = set(re.findall(r"uses: (actions/[\w-]+)@(v\d+)", README_WORKFLOW))
    assert shown
    assert shown <= pinned
    # one version of each in the whole repository
    assert len({name for name, _ in pinned}) == len(pinned)


def test_a_verdict_becomes_a_status_in_one_way() -> None:
    assert not [path for path in WORKFLOWS if "/statuses/" in path.read_text("utf-8")]
    (judge,) = yaml.safe_load(FORKS_JUDGE.read_text())["jobs"].values()
    assert "'status': 'true'" in str(judge["steps"])
    assert judge["permissions"]["statuses"] == "write"


@pytest.mark.parametrize("name", ["README.md", "docs/quick-start.md"])
def test_the_settings_are_committed_before_the_first_gate(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    (first, *_) = re.finditer("^repro-gate gate", text, re.MULTILINE)
    assert text.index("\ngit add repro-gate.yml && git commit") < first.start()
    told = " ".join(text.split())
    assert "ignored and untracked files are not in it" in told
    assert (
        "environment belongs in `.gitignore`" in told or "such as `.venv/`, in `.gitignore`" in told
    )
