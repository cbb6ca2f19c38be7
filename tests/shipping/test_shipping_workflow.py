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
    images = re.findall(r"\b(SLIM_)?IMAGE: (.*)$|image: (\$.*)$", TEXT, re.MULTILINE)
    assert {one or other for _, one, other in images} == {
        f"${{{{ {job}.outputs.{name} }}}}"
        for job in ("needs.image", "steps.push")
        for name in ("image", "slim_image")
    }
    assert all(("slim" in named) == bool(slim) for slim, named, _ in images if named)
    assert {"./", "./slim"} <= {step.get("uses") for step in JOBS["gate"]["steps"]}


def test_of_each_image_contents_and_provenance_are_signed() -> None:
    steps = JOBS["publish"]["steps"]
    for prefix in ("", "slim_"):
        name, digest = (
            f"${{{{ needs.image.outputs.{prefix}{part} }}}}" for part in ("name", "digest")
        )
        signed = [
            step["uses"].partition("@")[0]
            for step in steps
            if step.get("with", {}).get("subject-name") == name
            and step["with"]["subject-digest"] == digest
        ]
        assert sorted(signed) == ["actions/attest-build-provenance", "actions/attest-sbom"]
    made = {step["with"]["output-file"] for step in steps if "output-file" in step.get("with", {})}
    assert made == {
        step["with"]["sbom-path"] for step in steps if "sbom-path" in step.get("with", {})
    }


def test_no_expression_stands_in_a_script() -> None:
    scripts = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    assert scripts
    assert not [script for script in scripts if "${{" in script]


def test_each_supported_python_is_tested() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))["jobs"]
    told = (ROOT / "pyproject.toml").read_text("utf-8")
    lowest, beyond = re.findall(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', told)[0]
    supported = [f"3.{minor}" for minor in range(int(lowest), int(beyond))]
    assert [jobs[name]["strategy"]["matrix"]["python"] for name in ("fast", "test")] == [
        supported
    ] * 2
    assert f"PYTHONS ?= {' '.join(f'python{version}' for version in supported)}\n" in (
        ROOT / "Makefile"
    ).read_text("utf-8")
