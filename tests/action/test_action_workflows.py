"""The workflows that users copy: what they keep, when they start, which versions they name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from workflows_in_documents import workflows

from gate.pipelines.snapshots import stale_outputs
from gate.settings.gate_settings import TrainSettings
from gate.system.gate_names import artifact_name, output_folder

ROOT = Path(__file__).resolve().parents[2]
# nobody copies it: it is called, in a run of its caller's
CALLED = ROOT / ".github" / "workflows" / "reusable.yml"
WORKFLOWS = [
    *sorted({*(ROOT / ".github" / "workflows").glob("*.yml")} - {CALLED}),
    *sorted((ROOT / "examples" / "workflows").glob("*.yml")),
]
FORKS_JUDGE = ROOT / "examples" / "workflows" / "forks-judge.yml"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# every workflow that somebody may copy, as its text
COPIED = {path.name: path.read_text("utf-8") for path in WORKFLOWS} | {
    f"{path.name} {number}": text
    for path in DOCUMENTS
    for number, text in enumerate(workflows(path.read_text("utf-8")), start=1)
}
README_WORKFLOW = COPIED["README.md 1"]
BY_HAND = "started by hand, so no queue waits for it"
NOT_IN_A_MERGE_QUEUE = {
    "command-line.yml": "for what is merged already",
    "conda-image.yml": "builds what a later pull request names",
    "default-branch.yml": "for what is merged already",
    "doctor.yml": BY_HAND,
    "fleet.yml": "for what is merged already",
    "forks-judge.yml": "follows forks-run.yml; docs/forks.md says what a queue takes instead",
    "forks-run.yml": "its evidence is judged by another workflow, which no queue starts",
    "nightly-shake.yml": "for what is merged already",
    "nightly.yml": "for what is merged already",
    "publish.yml": "for what is merged already",
    "refresh-baseline.yml": BY_HAND,
    "refresh-many.yml": BY_HAND,
    "release.yml": BY_HAND,
}
NEVER_CANCELLED = {
    "command-line.yml": "each commit of main is checked",
    "conda-image.yml": "each commit leaves its image",
    "default-branch.yml": "each run adds a line to the history",
    "fleet.yml": "each run adds its lines to the history",
    "nightly.yml": "a night may be longer than a day",
    "publish.yml": "each commit leaves its package",
    "release.yml": "half a release is worse than two in a row",
}
GATE_STEP = re.compile(r"'uses': '(org/repro-gate|\./)|repro-gate gate ")
PINNED_MAJOR = re.compile(r"uses: ([\w-]+/[\w-]+)@[0-9a-f]{40} # (v\d+)\.")


def _triggers(workflow: Mapping[Any, Any]) -> set[str]:
    # the key `on` is a truth value to YAML 1.1
    on = workflow[True]
    return {on} if isinstance(on, str) else set(on)


def _uploads(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The inputs of the job's uploads that are made whatever the verdict."""
    return [
        step["with"]
        for step in job.get("steps", [])
        if "upload-artifact@" in step.get("uses", "") and step.get("if") == "${{ !cancelled() }}"
    ]


def test_what_a_gate_wrote_can_be_downloaded_whatever_the_verdict() -> None:
    jobs = [(name, job) for name in COPIED for job in yaml.safe_load(COPIED[name])["jobs"].values()]
    for name, job in jobs:
        kept = _uploads(job)
        for step in (step for step in job.get("steps", []) if GATE_STEP.search(str(step))):
            asked = step.get("with", {})
            own = output_folder(str(asked.get("gate_id", "default")))
            out = asked.get("out", own).rstrip("/")
            only_runs = asked.get("mode") == "run"
            wanted = f"{out}/evidence/" if only_runs else f"{out}/"
            holding = [upload for upload in kept if wanted.startswith(upload["path"])]
            assert holding, f"{name}: {wanted} is not uploaded"
            assert only_runs or [upload["retention-days"] for upload in holding] == [90], name


def test_the_uploaded_folder_holds_report_package_seals_and_proposal() -> None:
    told = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]["out"]
    default = output_folder("default")
    assert f"default: `{default}`, or `{output_folder('ID')}`" in told["description"]
    names = {path.relative_to(default).name for path in stale_outputs(Path(default))}
    assert {"report.html", "package.tar", "proposed-baseline.json"} < names
    assert {"package.dsse.json", "package.sigstore.json"} < names
    # the upload leaves hidden files out
    assert not [name for name in names if name.startswith(".")]


def test_each_workflow_starts_in_a_merge_queue_or_says_why_not() -> None:
    without = {
        name
        for name, text in COPIED.items()
        if "merge_group" not in _triggers(yaml.safe_load(text))
    }
    assert without == set(NOT_IN_A_MERGE_QUEUE)


def test_of_each_workflow_a_newer_run_ends_the_older_or_it_says_why_not() -> None:
    cancelled = {name: yaml.safe_load(text)["concurrency"] for name, text in COPIED.items()}
    assert all(kept["group"].startswith("${{ github.workflow }}") for kept in cancelled.values())
    assert {name for name, kept in cancelled.items() if not kept["cancel-in-progress"]} == set(
        NEVER_CANCELLED
    )


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


def test_what_logs_in_belongs_to_a_job_that_trains_nothing() -> None:
    jobs = yaml.safe_load(COPIED["publish.yml"])["jobs"]
    trains = [job for job in jobs.values() if "'mode': 'run'" in str(job["steps"])]
    (publishes,) = [job for job in jobs.values() if "REPRO_GATE_REGISTRY_PASSWORD" in str(job)]
    assert "'mode': 'judge'" in str(publishes["steps"])
    assert publishes["environment"] == "repro-gate"
    assert trains
    assert not [job for job in trains if "secrets." in str(job) or "env" in job]


def test_a_verdict_becomes_a_status_in_one_way() -> None:
    assert not [path for path in WORKFLOWS if "/statuses/" in path.read_text("utf-8")]
    (judge,) = yaml.safe_load(FORKS_JUDGE.read_text())["jobs"].values()
    assert "'status': 'true'" in str(judge["steps"])
    assert judge["permissions"]["statuses"] == "write"


@pytest.mark.parametrize("name", ["README.md", "docs/quick-start.md"])
def test_the_settings_are_committed_before_the_first_gate(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    (first, *_) = re.finditer("^repro-gate gate", text, re.MULTILINE)
    assert text.index("\ngit add . && git commit") < first.start()
    told = " ".join(text.split())
    assert "ignored and untracked files are not in it" in told
    assert (
        "environment belongs in `.gitignore`" in told
        or "does not belong to the project in `.gitignore`" in told
    )


def _gates(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each job of a workflow with a step that trains or judges, and that step."""
    jobs = yaml.safe_load(COPIED[name])["jobs"].values()
    steps = ((job, step) for job in jobs for step in job.get("steps", []))
    gates = ((job, step) for job, step in steps if GATE_STEP.search(str(step)))
    return [found for found in gates if found[1].get("with", {}).get("mode") != "link"]


# this repository's own train an example of a few seconds
def test_a_job_that_trains_has_time_for_all_that_a_call_trains() -> None:
    page = (ROOT / "docs" / "required-check.md").read_text("utf-8")
    (told,) = re.findall(r"`timeout-minutes` of (\d+) times\s+`train.timeout_seconds`", page)
    one_run: float = TrainSettings.model_fields["timeout_seconds"].default
    for name in COPIED.keys() - {"gate.yml", "release.yml"}:
        for job, step in _gates(name):
            if step.get("with", {}).get("mode") != "judge":
                assert job["timeout-minutes"] * 60 >= int(told) * one_run, name


def test_what_a_gate_uploads_is_called_as_its_comment_says() -> None:
    for name, job, step in ((one, *found) for one in COPIED for found in _gates(one)):
        asked = step.get("with", {})
        if "org/repro-gate" not in step.get("uses", "") or asked.get("mode") == "run":
            continue
        wanted = asked.get("artifact") or artifact_name(str(asked.get("gate_id", "default")))
        assert wanted in [upload.get("name") for upload in _uploads(job)], name


@pytest.mark.parametrize("gate_id", ["", "nlp"])
def test_the_workflow_that_is_called_keeps_what_its_gate_writes(gate_id: str) -> None:
    text = CALLED.read_text("utf-8")
    written = text.replace("${{ inputs.gate-id && '-' }}", "-" if gate_id else "")
    (job,) = yaml.safe_load(written.replace("${{ inputs.gate-id }}", gate_id))["jobs"].values()
    upload, page = _uploads(job)
    assert upload["path"] == f"{output_folder(gate_id or 'default')}/"
    assert page["path"] == f"{upload['path']}report{f'-{gate_id}' if gate_id else ''}.html"
    assert upload["name"] == artifact_name(gate_id or "default")
    inputs = yaml.safe_load(text)[True]["workflow_call"]["inputs"]
    one_run: float = TrainSettings.model_fields["timeout_seconds"].default
    assert inputs["timeout-minutes"]["default"] * 60 >= 12 * one_run


@pytest.mark.parametrize("name", ["matrix-gpus.yml", "monorepo.yml"])
def test_the_legs_of_a_matrix_are_gates_of_their_own(name: str) -> None:
    ((job, step),) = _gates(name)
    legs = job["strategy"]["matrix"]["include"]
    leg = re.fullmatch(r"\$\{\{ matrix\.(\w+) \}\}", step["with"]["gate_id"])
    assert leg is not None
    ids = [one[leg[1]] for one in legs]
    assert len({str(one).casefold() for one in ids}) == len(legs) > 1
    # one that fails must not end the other: each is a verdict of its own
    assert job["strategy"]["fail-fast"] is False
    assert f"matrix.{leg[1]}" in job["name"]
