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


def _of_each_image(action: str) -> list[dict[str, Any]]:
    return [
        step["with"]
        for job in JOBS.values()
        for step in job["steps"]
        if step.get("uses", "").startswith(action)
    ]


def test_the_tags_wait_for_the_gate_and_the_gate_for_the_images() -> None:
    assert [JOBS[name]["needs"] for name in ("image", "join", "gate")] == ["check", "image", "join"]
    assert set(JOBS["publish"]["needs"]) == {"join", "gate", "contents", "distribution"}
    assert JOBS["index"]["needs"] == "publish"
    assert not [name for name, job in JOBS.items() if "if" in job and name != "check"]


def test_only_the_last_job_may_write_to_the_repository() -> None:
    writing = [name for name, job in JOBS.items() if job["permissions"].get("contents") == "write"]
    assert writing == ["publish"]
    # reviewers can be asked for before it: docs/releasing.md
    assert JOBS["publish"]["environment"] == "release"


def test_the_index_is_reached_by_trust_in_this_workflow_and_no_secret() -> None:
    index = JOBS["index"]
    assert (index["environment"], index["permissions"]["id-token"]) == ("pypi", "write")
    assert 'uv" publish --trusted-publishing always' in index["steps"][-1]["run"]
    assert "secrets." not in TEXT


def test_what_trains_can_write_nothing() -> None:
    assert set(JOBS["gate"]["permissions"].values()) == {"read"}


def test_a_step_of_the_gate_that_is_expected_to_pass_cannot_be_overlooked() -> None:
    lenient = [step["name"] for step in JOBS["gate"]["steps"] if step.get("continue-on-error")]
    assert lenient == ["A shuffle without a seed does not"]
    assert JOBS["gate"]["steps"][-1]["name"] == "The failure was the expected one"


def test_on_each_architecture_the_isolation_has_to_hold() -> None:
    (step,) = (step for step in JOBS["gate"]["steps"] if '["isolation"]' in step.get("run", ""))
    assert """["isolation"]["mode"] == "uid"'""" in step["run"]
    assert not {"if", "continue-on-error"} & set(step)
    assert '"repro-gate-out/digits/verdict.json"' in step["run"]


def test_both_images_are_built_and_gated_on_a_machine_of_each_architecture() -> None:
    matrix = JOBS["image"]["strategy"]["matrix"]
    runners = {row["architecture"]: row["runner"] for row in matrix["include"]}
    assert runners == {"amd64": "ubuntu-24.04", "arm64": "ubuntu-24.04-arm"}
    assert sorted(matrix["architecture"]) == sorted(runners)
    assert JOBS["gate"]["strategy"]["matrix"]["runner"] == list(runners.values())
    built = {f"{kind}_{name}" for kind in matrix["kind"] for name in matrix["architecture"]}
    assert set(JOBS["image"]["outputs"]) == built
    joined = re.findall(r"needs\.image\.outputs\.(\w+)", str(JOBS["join"]))
    assert sorted(joined) == sorted(built)
    for kind in matrix["kind"]:
        names = " ".join(f'"${kind.upper()}_{name.upper()}"' for name in matrix["architecture"])
        assert f'"candidate-$VERSION" {kind} {names})' in str(JOBS["join"])


def test_what_is_gated_is_what_is_published() -> None:
    for job in ("gate", "publish"):
        pinned = [step["env"] for step in JOBS[job]["steps"] if "IMAGE" in step.get("env", {})]
        assert [(names["IMAGE"], names["SLIM_IMAGE"]) for names in pinned] == [
            ("${{ needs.join.outputs.full }}", "${{ needs.join.outputs.slim }}")
        ]
    assert {"./", "./slim"} <= {step.get("uses") for step in JOBS["gate"]["steps"]}


def test_nothing_is_signed_or_tagged_that_not_everybody_gets() -> None:
    scripts = [step.get("run", step.get("uses", "")) for step in JOBS["publish"]["steps"]]
    asked = next(place for place, text in enumerate(scripts) if "--pinned" in text)
    later = [
        place for place, text in enumerate(scripts) if re.search("attest|publish|gh rel", text)
    ]
    assert asked < min(later)


def test_of_each_released_name_the_provenance_is_signed() -> None:
    signed = {
        (asked["subject-name"], asked["subject-digest"], asked["push-to-registry"])
        for asked in _of_each_image("actions/attest@")
        if "sbom-path" not in asked
    }
    assert signed == {
        (
            f"${{{{ steps.pin.outputs.{kind}name }}}}",
            f"${{{{ steps.pin.outputs.{kind}digest }}}}",
            True,
        )
        for kind in ("", "slim_")
    }


def test_of_each_image_the_contents_are_signed() -> None:
    rows = JOBS["contents"]["strategy"]["matrix"]["include"]
    built = {name.replace("_", "-"): name for name in JOBS["image"]["outputs"]}
    assert {row["image"]: row["by_digest"] for row in rows} == {
        image: f"${{{{ needs.image.outputs.{name} }}}}" for image, name in built.items()
    }
    # an image is looked into where it runs
    assert all(("arm64" in row["image"]) == row["runner"].endswith("-arm") for row in rows)
    (found,) = _of_each_image("anchore/sbom-action@")
    (signed,) = (asked for asked in _of_each_image("actions/attest@") if "sbom-path" in asked)
    assert found["output-file"] == signed["sbom-path"]
    assert found["image"] == "${{ steps.image.outputs.image }}"
    assert signed["subject-digest"] == "${{ steps.image.outputs.digest }}"
    assert signed["push-to-registry"] is True


def test_the_owners_guide_names_jobs_and_checks_as_they_are() -> None:
    guide = (ROOT / "docs" / "releasing.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", guide, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == list(JOBS)
    texts = [
        (ROOT / ".github" / "workflows" / name).read_text() for name in ("tests.yml", "gate.yml")
    ]
    checks = [job["name"] for text in texts for job in yaml.safe_load(text)["jobs"].values()]
    told = re.findall(r"`([^`]+)`", guide.partition("required checks")[2].partition(". For the")[0])
    assert [name.partition(" (")[0] for name in told] == [
        name.partition(" (")[0] for name in checks
    ]
    assert "*Everybody gets the images*" in guide
    assert "Everybody gets the images" in [step.get("name") for step in JOBS["publish"]["steps"]]


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
