"""Two strict runs that end in different states: both are kept, and how far they are apart."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from gate_bench import FILES, Bench
from played_training import Project

from gate.errors import EvidenceError
from gate.package.archive import read_archive
from gate.package.members import write_package
from gate.pipelines.case import Gated
from gate.pipelines.gate import judging, run_only
from gate.report.assembly import ReportLinks
from gate.report.page.maps import heat_cell
from gate.report.page.page import page_html
from gate.report.page.page_sources import page_sources
from gate.text.digests import sha256_hex
from gate.verdict.verdict import Outcome

STATE = "strict-2/state.safetensors"
NAME = "state/model/0/weight"


def test_a_second_state_that_is_another_is_kept_and_measured_and_not_packed(
    bench: Bench, project: Project
) -> None:
    project.play(random=True)
    found = bench.gate()
    assert found.verdict.outcome is Outcome.NONDETERMINISTIC
    apart = found.evidence.apart
    assert apart is not None
    assert apart.distance is not None
    content = (bench.out / "evidence" / STATE).read_bytes()
    assert (apart.state.name, apart.state.sha256) == (STATE, hashlib.sha256(content).hexdigest())
    (one,) = apart.distance.tensors
    assert (one.name, one.elements) == (NAME, 8)
    drawn = page_sources(found.verdict, found.evidence, found.baseline)
    page = page_html(found.verdict, ReportLinks(), sources=drawn)
    cell = heat_cell(one)
    assert f'<td class="{cell.kind}">{cell.text}</td>' in page
    package = write_package(
        found.verdict, found.evidence, None, bench.request(), FILES, found.documents
    )
    with package.path.open("rb") as fingerprint:
        archive = read_archive(fingerprint, size_bytes=package.size_bytes, keep=frozenset())
    states = [one.name for one in archive.members if one.name.endswith(".safetensors")]
    assert states == ["checkpoint/state.safetensors"]


def test_a_second_state_that_is_equal_is_not_kept(bench: Bench) -> None:
    assert bench.gate().evidence.apart is None
    assert sorted(path.name for path in (bench.out / "evidence/strict-2").iterdir()) == [
        "evidence.json",
        "output.txt",
    ]


@pytest.fixture
def told(bench: Bench, project: Project, tmp_path: Path) -> Path:
    project.play(random=True)
    folder = tmp_path / "told"
    shutil.copytree(run_only(bench.request(), bench.adapters()), folder)
    return folder


def judged(bench: Bench, folder: Path) -> Gated:
    request = bench.request(commit=bench.project.git("rev-parse", "HEAD").strip())
    return judging(folder)(replace(request, imported_runs=True), bench.adapters(), None)


def rewrite(folder: Path, **apart: object) -> None:
    """Change what set.json says of the second state, and the manifest so that it fits."""
    path, manifest = folder / "set.json", folder / "manifest.json"
    value, listed = json.loads(path.read_text()), json.loads(manifest.read_text())
    value["apart"] = {**value["apart"], **apart}
    path.write_text(json.dumps(value))
    listed["documents"][0]["sha256"] = sha256_hex(path.read_bytes())
    manifest.write_text(json.dumps(listed))


def test_the_job_that_judges_measures_again(bench: Bench, told: Path) -> None:
    honest = judged(bench, told).evidence.apart
    rewrite(told, distance={"total": 0, "tensors": []})
    again = judged(bench, told).evidence.apart
    assert honest is not None
    assert honest.distance is not None
    assert (again, honest.distance.total) == (honest, 1)


def test_a_second_state_that_is_not_the_runs_is_refused(bench: Bench, told: Path) -> None:
    shutil.copyfile(told / "strict-1/state.safetensors", told / STATE)
    digest = sha256_hex((told / STATE).read_bytes())
    rewrite(told, state={"name": STATE, "sha256": digest})
    with pytest.raises(EvidenceError, match="is not the state of run strict-2"):
        judged(bench, told)


def test_a_second_state_of_another_name_is_refused(bench: Bench, told: Path) -> None:
    rewrite(told, state={"name": "strict-1/state.safetensors", "sha256": "0" * 64})
    with pytest.raises(EvidenceError, match="keeps a state that the gate never keeps"):
        judged(bench, told)
