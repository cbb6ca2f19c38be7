"""The manifests for a cluster against published schemas, and what their pods run, run here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from each_row import each_row
from module_imports import ROOT
from played_training import Project

FOLDER = ROOT / "examples/kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yml"))
OF_CORE = ("cron-job.yml", "indexed-job.yml")
needs_schemas = pytest.mark.skipif(
    find_spec("kubernetes_validate") is None, reason="needs kubernetes-validate"
)


def manifest(name: str) -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / name).read_text())
    assert isinstance(found, dict)
    return found


def refusals(name: str, document: dict[str, Any]) -> str:
    """What Kubernetes' own schemas say of a document; unknown keys are refused."""
    validate = import_module("kubernetes_validate")
    try:
        validate.validate(document, validate.latest_version(), strict=True)
    except validate.ValidationError as fault:
        return f"{name}: {fault.message}"
    return ""


@needs_schemas
@pytest.mark.parametrize("name", OF_CORE)
def test_a_job_fits_the_schema_of_kubernetes(name: str) -> None:
    assert refusals(name, manifest(name)) == ""


@needs_schemas
def test_a_key_that_kubernetes_does_not_know_is_refused() -> None:
    job = manifest("indexed-job.yml")
    job["spec"]["template"]["spec"]["nodeSelectors"] = {}
    assert "nodeSelectors" in refusals("indexed-job.yml", job)


def pod_parts(node: object) -> Iterator[dict[str, Any]]:
    """Each mapping of a resource of somebody else's kind that holds parts of a pod."""
    if isinstance(node, dict):
        if "volumes" in node or "resourcesPerNode" in node:
            yield node
        for value in node.values():
            yield from pod_parts(value)
    elif isinstance(node, list):
        for value in node:
            yield from pod_parts(value)


@needs_schemas
@pytest.mark.parametrize("name", ["argo-workflow.yml", "train-job.yml"])
def test_the_parts_of_a_pod_in_other_kinds_fit_the_schema_of_a_pod(name: str) -> None:
    parts = list(pod_parts(manifest(name)))
    assert parts
    for part in parts:
        containers = part.get("containers") or [part.get("container") or part]
        known = ("image", "command", "args", "env", "resources", "volumeMounts")
        spec: dict[str, Any] = {
            key: part[key] for key in ("volumes", "nodeSelector") if key in part
        }
        spec["containers"] = [
            {"name": "gate", **{key: one[key] for key in known if key in one}} for one in containers
        ]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
        assert refusals(name, pod) == ""


def test_every_pod_has_what_a_verdict_needs() -> None:
    lacking = [
        f"{path.name}: {word}"
        for path in MANIFESTS
        for word in (
            *("nodeSelector:", "shared-memory", "medium: Memory", "/scripts/gate.sh", "/evidence"),
            *("nvidia.com/gpu: ", "@sha256:", "activeDeadlineSeconds:"),
        )
        if word not in path.read_text()
    ]
    assert lacking == []
    # a second try would hide what the first one showed
    jobs = [manifest("indexed-job.yml"), manifest("cron-job.yml")["spec"]["jobTemplate"]]
    assert [job["spec"]["backoffLimit"] for job in jobs] == [0, 0]
    secrets = [path.name for path in MANIFESTS if "secret" in path.read_text().casefold().split()]
    assert all(name == "argo-workflow.yml" for name in secrets)


def checked(*paths: Path) -> subprocess.CompletedProcess[str]:
    words = ("sh", str(FOLDER / "check.sh"), *map(str, paths))
    return subprocess.run(words, check=False, capture_output=True, text=True)


def test_the_placeholder_is_refused_in_every_manifest() -> None:
    ended = checked(*MANIFESTS)
    assert ended.returncode == 1
    told = ended.stderr.splitlines()
    assert len(told) == len(MANIFESTS)
    assert all("is the placeholder: put the digest of your image there" in line for line in told)


@each_row(
    ("image", "said"),
    [
        (f"one.example/a@sha256:{'ab' * 32}", ""),
        (f'"one.example/a:tag@sha256:{"12" * 32}"', ""),
        ("one.example/a:latest", "is not named by digest"),
        ("one.example/a", "is not named by digest"),
        (f"one.example/a@sha256:{'ab' * 31}", "is not named by digest"),
        (f"one.example/a@sha256:{'AB' * 32}", "is not named by digest"),
        ("", "names no image"),
    ],
)
def test_an_image_has_to_be_named_by_digest(tmp_path: Path, image: str, said: str) -> None:
    path = tmp_path / "job.yml"
    path.write_text(f"spec:\n  containers:\n    - image: {image}\n" if image else "spec: {}\n")
    ended = checked(path)
    assert (ended.returncode, said in ended.stderr) == (1 if said else 0, True)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def in_pod(project: Project, evidence: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The pod's script, with the variables of its manifest and no others."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"PATH": programs, "REPOSITORY": str(project.path), "EVIDENCE": str(evidence)}
    words = ("sh", str(FOLDER / "gate.sh"))
    env = given | variables
    return subprocess.run(
        words, env=env, cwd=evidence.parent, check=False, capture_output=True, text=True
    )


def test_a_pod_trains_a_commit_and_hands_out_evidence_that_is_judged(
    project: Project, tmp_path: Path
) -> None:
    commit = project.play()
    project.play(losses=["1.0", "2.0", "3.0"])
    ended = in_pod(project, tmp_path / "evidence", COMMIT=commit)
    assert ended.returncode == 0, ended.stderr
    folder = tmp_path / "evidence" / commit / "repro-gate.yml"
    assert f"evidence: {folder}" in ended.stdout
    assert json.loads((folder / "set.json").read_text())["commit"] == commit
    project.git("checkout", "--quiet", commit)
    words = (sys.executable, "-m", "gate", "judge", str(folder), "-q")
    judged = subprocess.run(words, cwd=project.path, check=False, capture_output=True, text=True)
    assert (judged.returncode, "no baseline" in judged.stdout) == (1, True)


def test_the_index_of_a_job_picks_the_settings_file(project: Project, tmp_path: Path) -> None:
    project.write("second.yml", (project.path / "repro-gate.yml").read_text())
    commit = project.commit()
    ended = in_pod(
        project,
        tmp_path / "evidence",
        CONFIGS="repro-gate.yml second.yml",
        JOB_COMPLETION_INDEX="1",
    )
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in (tmp_path / "evidence" / commit).iterdir()] == ["second.yml"]


def test_a_training_that_fails_fails_the_pod(project: Project, tmp_path: Path) -> None:
    project.play(exit=3)
    ended = in_pod(project, tmp_path / "evidence")
    assert ended.returncode == 3
    assert "exited with 3" in ended.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"COMMIT": "f" * 40}, f"has no commit {'f' * 40} on a branch"),
        ({"JOB_COMPLETION_INDEX": "1"}, "index 1 has no settings file: CONFIGS names 1"),
        ({"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX is x, not a number"),
        ({"REPOSITORY": ""}, "REPOSITORY: is not set"),
        ({"EVIDENCE": ""}, "EVIDENCE: is not set"),
    ],
)
def test_a_pod_that_cannot_begin_says_why(
    project: Project, tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    ended = in_pod(project, tmp_path / "evidence", **variables)
    assert ended.returncode == 2
    assert said in ended.stderr
