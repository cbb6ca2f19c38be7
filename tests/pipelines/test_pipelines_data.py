"""Declared data through whole gates: found by every run, digested, named when it moved."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from data_training import CHANGES, LOSSES, READS
from file_server import FileServer
from gate_bench import Bench, gate_call
from own_isolation import isolated
from played_training import SETTINGS, Project

from gate.errors import DataError, RunError
from gate.isolation.modes import WriteGuard
from gate.pipelines.adapters import Adapters
from gate.system.console import Reached
from gate.verdict.verdict import Outcome, Severity

SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture
def reading(project: Project, mini: Path) -> Project:
    project.write("train.py", READS)
    project.settings(f"data:\n  - {{path: {mini}, as: mini}}\n")
    return project


def moved(bench: Bench) -> tuple[str, ...]:
    """The findings about data that moved, of the newest verdict."""
    verdict = bench.gate().verdict
    return tuple(each.message for each in verdict.findings if each.code == "data-moved")


@pytest.mark.usefixtures("reading")
def test_declared_data_is_found_digested_and_described(bench: Bench) -> None:
    bench.record()
    found = bench.gate()
    assert found.verdict.outcome is Outcome.REPRODUCED
    (mini,) = found.verdict.data
    assert (mini.name, mini.files, mini.size_bytes) == ("mini", 2, 24)
    (column,) = mini.statistics
    assert (column.format, column.rows, column.mean) == ("csv", 2, 0.5)
    assert [part.first for part in found.evidence.data[0].parts] == ["losses.txt", "rows.csv"]


def test_a_script_finds_data_at_the_path_that_it_already_uses(
    bench: Bench, reading: Project, mini: Path
) -> None:
    reading.settings(f"data:\n  - {{path: {mini}, at: data/ready}}\n")
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.NO_BASELINE
    assert [(each.name, each.place) for each in verdict.data] == [("mini", "data/ready")]


def test_data_takes_the_place_of_no_committed_file(
    bench: Bench, project: Project, mini: Path
) -> None:
    project.write("data/ready/losses.txt", "1 2 3")
    project.settings(f"data:\n  - {{path: {mini}, at: data/ready}}\n")
    with pytest.raises(DataError, match="data: mini: the commit itself has data/ready") as caught:
        bench.gate()
    assert "git rm -r --cached data/ready" in caught.value.hint


@pytest.mark.usefixtures("reading")
def test_data_that_moved_is_named_and_its_difference_is_no_code_drift(
    bench: Bench, mini: Path
) -> None:
    bench.record()
    (mini / "losses.txt").write_text("2.5 2.25 2.0")
    (mini / "rows.csv").write_text("a\n0.4\n0.8\n")
    verdict = bench.gate().verdict
    assert (verdict.outcome, int(verdict.exit_code)) == (Outcome.DATA_DRIFT, 1)
    sentence = "mini, 2 of 2 files (first: losses.txt), mean 0.500 → 0.600, deviation 0.100 → 0.200"
    (finding,) = (each for each in verdict.findings if each.code == "data-moved")
    assert (finding.message, finding.severity) == (sentence, Severity.WARNING)
    assert verdict.cause == (
        f"the declared data moved ({sentence}), and the result differs from the baseline: loss at "
        "step 3 is 2.0, expected 2.125"
    )
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.cause_class == "data"


@pytest.mark.usefixtures("reading")
def test_what_moved_is_told_before_the_first_run(bench: Bench, mini: Path) -> None:
    bench.record()
    (mini / "losses.txt").write_text("2.5 2.25 2.0")
    adapters = bench.adapters()
    shown: list[str] = []

    class Told:
        def step(self, text: str) -> None:
            shown.append(text)

        def output(self, line: bytes) -> None: ...

        def running(self, text: str) -> AbstractContextManager[Reached | None]:
            shown.append(text)
            return adapters.progress.running(text)

    gate_call(bench.request(), replace(adapters, progress=Told()))
    told = [text.partition(":")[0] for text in shown]
    assert told.index("data-moved") < told.index("default-1")


@pytest.mark.usefixtures("reading")
def test_equal_bits_pass_whatever_data_moved_and_say_so(bench: Bench, mini: Path) -> None:
    bench.record()
    (mini / "more.txt").write_text("more")
    assert bench.gate().verdict.outcome is Outcome.REPRODUCED
    assert moved(bench) == ("mini, 1 of 3 files (first: more.txt), 2 → 3 files",)


def test_within_a_tolerance_other_data_passes_only_by_policy(
    bench: Bench, reading: Project, mini: Path
) -> None:
    tolerant = (
        f"data:\n  - {{path: {mini}, as: mini}}\n"
        "compare: {tolerances: [{metric: '*', absolute: 1.0}]}\n"
    )
    reading.settings(tolerant)
    bench.record()
    (mini / "losses.txt").write_text("2.5 2.25 2.0")
    assert bench.gate().verdict.outcome is Outcome.DATA_DRIFT
    reading.settings(tolerant + "policy: {data_drift: pass}\n")
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.WITHIN_TOLERANCE, True)
    assert verdict.cause.endswith("within tolerance, and policy.data_drift is pass")


def test_the_base_commit_tells_data_from_code(bench: Bench, reading: Project, mini: Path) -> None:
    base = bench.record()
    (mini / "losses.txt").write_text("2.5 2.25 2.0")
    verdict = bench.gate(base=base).verdict
    assert verdict.outcome is Outcome.DATA_DRIFT
    assert verdict.cause.endswith("with this data the base commit gives the same result here")
    reading.play(plus=1)
    verdict = bench.gate(base=base).verdict
    assert verdict.outcome is Outcome.CODE_DRIFT
    assert "differs from the base commit, run here with the same data" in verdict.cause


@pytest.mark.usefixtures("reading")
def test_a_new_baseline_is_recorded_with_the_data_of_its_run(bench: Bench, mini: Path) -> None:
    bench.record()
    (mini / "losses.txt").write_text("2.5 2.25 2.0")
    found = bench.gate()
    assert found.proposed is not None
    assert found.proposed.data == found.evidence.data
    bench.record()
    assert bench.gate().verdict.outcome is Outcome.REPRODUCED
    assert moved(bench) == ()


def test_data_that_was_declared_since_is_another_training(bench: Bench, project: Project) -> None:
    bench.record()
    (bench.out.parent / "x.txt").write_text("x")
    project.settings(f"data:\n  - {{path: {bench.out.parent}/x.txt}}\n")
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert verdict.cause == "the baseline was recorded with a different data.x.txt"


def test_a_run_that_changes_its_data_is_an_error(bench: Bench, reading: Project) -> None:
    reading.write("train.py", READS + CHANGES)
    reading.commit()
    with pytest.raises(RunError, match="mini changed while the gate ran"):
        bench.gate()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("path: /nonexistent/mini", "data: mini: there is no /nonexistent/mini"),
        ("dvc: data/train.dvc", "data: data/train.dvc is not in the commit"),
        ('lfs: "*.none"', "data: the pattern \\*.none matches no file of the commit"),
    ],
)
def test_data_that_is_not_there_is_an_error_before_any_run(
    bench: Bench, project: Project, entry: str, message: str
) -> None:
    project.settings(f"data:\n  - {{{entry}}}\n")
    with pytest.raises(DataError, match=message) as caught:
        bench.gate()
    assert caught.value.hint
    assert int(caught.value.exit_code) == 3


def test_a_file_of_the_web_is_fetched_once_for_all_runs_and_calls(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    one_file = READS.replace('"mini"', '"x"').replace('source / "losses.txt"', "source")
    project.write("train.py", one_file)
    with FileServer(LOSSES.encode()) as server:
        digest = hashlib.sha256(LOSSES.encode()).hexdigest()
        project.settings(
            f"data:\n  - {{url: '{server.url}', sha256: {digest}, as: x}}\n"
            f"fetch: {{cache: {tmp_path}/cache}}\n"
        )
        bench.record()
        found = bench.gate()
        assert len(server.asked) == 1
    assert found.verdict.outcome is Outcome.REPRODUCED
    assert (found.verdict.data[0].sha256, found.verdict.data[0].origin) == (digest, server.url)


class OwnAccount(Bench):
    """Trains under another account, with an interpreter that every account can start."""

    def adapters(self) -> Adapters:
        return isolated(super().adapters())


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    if os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"needs root, and {SYSTEM_PYTHON} for another account")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_another_account_finds_data_that_it_could_not_reach_and_cannot_change_it(
    open_to_all: Path, mini: Path
) -> None:
    """Shown by a mount: the folder above is the gate's alone."""
    tries = (
        "refused = []\n"
        "for path in (source / 'losses.txt', source / 'new'):\n"
        "    try: path.open('a').close()\n"
        "    except OSError as error: refused.append(error.strerror)\n"
        "print('refused:', *refused)\n"
    )
    project = Project(open_to_all / "project")
    project.write("train.py", READS.replace("words = dict(", f"{tries}words = dict("))
    (mini / "losses.txt").chmod(0o666)
    mini.chmod(0o777)
    mini.parent.chmod(0o700)
    project.write(
        "repro-gate.yml",
        SETTINGS.replace("none", "uid") + f"data:\n  - {{path: {mini}, as: mini}}\n",
    )
    project.commit()
    bench = OwnAccount(project, open_to_all / "out")
    verdict = bench.gate().verdict
    if verdict.isolation.guard is not WriteGuard.MOUNT_NAMESPACE:
        pytest.skip("this machine has no mount namespaces for root")
    output = (bench.out / "evidence" / "strict-1" / "output.txt").read_text()
    assert output.count("Read-only file system") == 2
    assert [one.rows for one in verdict.data[0].statistics] == [2]


def test_data_that_the_account_may_not_read_is_named(open_to_all: Path, mini: Path) -> None:
    (mini / "rows.csv").chmod(0o600)
    project = Project(open_to_all / "project")
    project.write(
        "repro-gate.yml",
        SETTINGS.replace("none", "uid") + f"data:\n  - {{path: {mini}, as: mini}}\n",
    )
    project.commit()
    with pytest.raises(DataError, match="account may not read") as caught:
        OwnAccount(project, open_to_all / "out").gate()
    assert caught.value.hint == f"Let every account read it: chmod -R o+rX {mini}"


def test_a_sample_is_told_and_is_another_training(
    bench: Bench, reading: Project, mini: Path
) -> None:
    bench.record()
    for number in range(100):
        (mini / f"{number}.bin").write_bytes(b"%d" % number)
    reading.settings(f"data:\n  - {{path: {mini}, as: mini, verify: sample}}\n")
    verdict = bench.gate().verdict
    assert verdict.cause == "the baseline was recorded with a different data.mini"
    assert verdict.data[0].sampled


@pytest.mark.usefixtures("reading")
def test_the_manifest_of_the_evidence_names_the_data(bench: Bench) -> None:
    bench.gate()
    written = json.loads((bench.out / "evidence" / "set.json").read_text())
    assert [one["name"] for one in written["data"]] == ["mini"]
