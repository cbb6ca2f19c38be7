"""The release workflow: who may write, and that nothing is released which the gate refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
WORKFLOW: dict[str, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, Any] = WORKFLOW["jobs"]


def test_the_tags_wait_for_the_gate_and_the_gate_for_the_image() -> None:
    assert JOBS["gate"]["needs"] == "image"
    assert set(JOBS["publish"]["needs"]) == {"image", "gate"}
    assert "if" not in JOBS["publish"]


def test_only_the_last_job_may_write_to_the_repository() -> None:
    writing = [name for name, job in JOBS.items() if job["permissions"]["contents"] == "write"]
    assert writing == ["publish"]


def test_what_trains_can_write_nothing() -> None:
    assert set(JOBS["gate"]["permissions"].values()) == {"read"}


def test_a_step_of_the_gate_that_is_expected_to_pass_cannot_be_overlooked() -> None:
    lenient = [step["name"] for step in JOBS["gate"]["steps"] if step.get("continue-on-error")]
    assert lenient == ["A shuffle without a seed does not"]
    assert JOBS["gate"]["steps"][-1]["name"] == "The failure was the expected one"


def test_what_is_gated_is_what_is_published() -> None:
    images = re.findall(r"IMAGE: (.*)$|image: (\$.*)$", TEXT, re.MULTILINE)
    used = {one or other for one, other in images}
    outputs = {"${{ needs.image.outputs.image }}", "${{ steps.push.outputs.image }}"}
    assert used == outputs


def test_no_expression_stands_in_a_script() -> None:
    scripts = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    assert scripts
    assert not [script for script in scripts if "${{" in script]
