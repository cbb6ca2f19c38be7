"""The ML-BOM of a package, checked by CycloneDX's own schema."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_bench import Bench
from played_training import Project

from gate.evidence.configuration import Configuration, configuration_digest
from gate.package.aibom import aibom

STATE = "a" * 64


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A played training with declared data and a configuration."""
    project = Project(tmp_path / "project")
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / "a.csv").write_text("x\n1\n")
    project.settings(f"data: [{{path: {tmp_path}/numbers, as: numbers}}]\ncost: {{when: never}}\n")
    project.play(configuration={"argparse.lr": "0.1", "argparse.token": '"(hidden)"'})
    made = Bench(project, tmp_path / "out")
    made.priced = False
    return made


def _document(data: bytes) -> dict[str, Any]:
    # its schemas take seconds of every process that collects tests
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    faults = JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode())
    assert faults is None, faults
    document: dict[str, Any] = json.loads(data)
    return document


def test_it_says_how_the_model_was_trained_and_is_valid(bench: Bench) -> None:
    gated = bench.gate()
    request = bench.request()
    data = aibom(gated.verdict, gated.evidence, request, STATE)
    assert aibom(gated.verdict, gated.evidence, request, STATE) == data
    document = _document(data)

    model = document["metadata"]["component"]
    assert (model["type"], model["version"]) == ("machine-learning-model", gated.verdict.commit)
    assert model["hashes"] == [{"alg": "SHA-256", "content": STATE}]
    facts = {one["name"]: one["value"] for one in model["properties"]}
    assert facts["repro-gate:checkpoint_digest"] == gated.verdict.checkpoint_digest
    assert facts["repro-gate:outcome"] == "no-baseline"
    card = model["modelCard"]
    assert card["modelParameters"]["datasets"] == [{"ref": "data-0"}]
    (loss,) = card["quantitativeAnalysis"]["performanceMetrics"]
    assert (loss["type"], loss["value"]) == ("loss", "2.125")

    (numbers,) = [one for one in document["components"] if one["type"] == "data"]
    told = {one["name"]: one["value"] for one in numbers["properties"]}
    assert numbers["name"] == "numbers"
    assert told["repro-gate:data_sha256"] == gated.verdict.data[0].sha256

    (workflow,) = document["formulation"][0]["workflows"]
    assert workflow["steps"][-1]["commands"] == [{"executed": '["python3", "train.py"]'}]
    (given,) = [one["parameters"] for one in workflow["inputs"] if "parameters" in one]
    values = {one["name"]: one["value"] for one in given}
    assert values["seed"] == "42"
    assert values["argparse.lr"] == "0.1"
    assert values["argparse.token"] == '"(hidden)"'


def test_imported_packages_are_those_of_their_index(bench: Bench) -> None:
    gated = bench.gate()
    first = gated.evidence.runs[0]
    environment = first.environment.model_copy(
        update={
            "packages": (
                *("Some_Lib==1.0+cpu", "own==2.0", "unused==3.0"),
                *("x/../torch==2.0", "two==1.0", "two==2.0"),
            ),
            "imported": ("Some_Lib", "own", "x/../torch", "two"),
            "origins": {"own": "file:///srv/own"},
        }
    )
    runs = tuple(run.model_copy(update={"environment": environment}) for run in gated.evidence.runs)
    evidence = gated.evidence.model_copy(update={"runs": runs})
    document = _document(aibom(gated.verdict, evidence, bench.request(), ""))
    found = {one["name"]: one for one in document["components"] if one["type"] == "library"}
    assert found.keys() == {"Some_Lib", "own", "x/../torch", "two"}
    assert found["Some_Lib"]["purl"] == "pkg:pypi/some-lib@1.0%2Bcpu"
    # another package's name is no way to it
    assert found["x/../torch"]["purl"] == "pkg:pypi/x%2F..%2Ftorch@2.0"
    references = [one["bom-ref"] for one in document["components"]]
    assert len(set(references)) == len(references)
    assert "purl" not in found["own"]
    assert "hashes" not in document["metadata"]["component"]


def test_names_that_a_training_chose_harm_no_reader(bench: Bench) -> None:
    gated = bench.gate()
    odd = {"argparse.\u202e<script>": '"\\u0000"', "x" * 200: "1"}
    found = Configuration(digest=configuration_digest(odd), values=odd)
    verdict = gated.verdict.model_copy(update={"configuration": found})
    request = replace(bench.request(), repository="owner/name")
    data = aibom(verdict, gated.evidence, request, STATE)
    assert data.isascii()
    assert _document(data)["metadata"]["component"]["name"] == "owner/name"


def test_the_package_has_it(bench: Bench) -> None:
    from gate.package.members import write_package  # noqa: PLC0415 - of this test alone

    gated = bench.gate()
    request = bench.request()
    files = bench.adapters().files
    package = write_package(
        gated.verdict, gated.evidence, gated.baseline, request, files, gated.documents
    )
    assert "aibom.cdx.json" in dict(package.members)
