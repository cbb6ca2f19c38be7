"""A package run again: from a clone, from its own code, with other code, on another machine."""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from gate_bench import FILES, Bench, adapters_at
from played_training import SETTINGS, Project
from recorded_trainings import recorded
from rich.console import Console
from scenes import copied

from gate.commands.reproduce import reproduction_view
from gate.comparison.statistical_tests import SpreadPlace
from gate.errors import (
    AttestationError,
    DocumentError,
    EvidenceError,
    ExitCode,
    RepositoryError,
    SettingsError,
)
from gate.evidence.columns import Points
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.package.members import write_package
from gate.package.packing import CALL_SCHEMA, CallDocument
from gate.pipelines.kept_evidence import KeptEvidence, open_kept_evidence, open_kept_package
from gate.pipelines.opening import (
    CodeSource,
    OpenedPackage,
    Reproduction,
    ReproductionCall,
    ReproductionOutcome,
    SealChecked,
    check_same_file,
    open_for_reproduction,
)
from gate.pipelines.reproduce import reproduce
from gate.text.documents import read_document
from gate.verdict.verdict import Outcome

# default runs are part of what these tests are about
pytestmark = pytest.mark.usefixtures("priced")

WITH_SOURCE = f"{SETTINGS}package: {{source: true}}\n"
TOLERANT = "compare:\n  tolerances:\n    - {metric: loss, relative: 0.5}\n"


@pytest.fixture
def package(bench: Bench, project: Project, tmp_path: Path) -> Path:
    """A package that holds its code, made once by a gate call without a baseline."""
    project.write("repro-gate.yml", WITH_SOURCE)
    project.commit()
    made = copied("package-with-source", lambda folder: packed(bench, folder), tmp_path / "package")
    return made / "package.tar"


def packed(bench: Bench, tmp_path: Path, **options: object) -> Path:
    found = bench.gate(**options)
    written = write_package(
        found.verdict, found.evidence, None, bench.request(**options), FILES, found.documents
    )
    # out of the folder that the next call empties
    return Path(written.path.rename(tmp_path / "package.tar"))


def opened_at(package: Path, tmp_path: Path, **asked: object) -> OpenedPackage:
    options: dict[str, object] = {"repository": tmp_path / "nowhere", "data": {}, **asked}
    call = ReproductionCall(
        package=package,
        out=tmp_path / "again",
        **options,  # type: ignore[arg-type] # by name
    )
    return open_for_reproduction(
        call,
        open_kept_package(FILES, package),
        FILES,
        lambda top: recorded(adapters_at(top)),
    )


def again(opened: OpenedPackage, *, seeds: int = 0) -> Reproduction:
    return reproduce(
        opened,
        SealChecked(key_id="a" * 64),
        seeds=seeds,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def text_of(found: Reproduction) -> str:
    console = Console(file=io.StringIO(), width=80, markup=False)
    console.print(reproduction_view(found), crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def made_then(opened: OpenedPackage, *, loss: float, driver: str = "") -> OpenedPackage:
    """The package as if its runs had ended in another loss, on another machine."""

    def moved(run: RunEvidence) -> RunEvidence:
        parts = {**run.environment.parts, **({"driver": driver} if driver else {})}
        (series,) = run.metrics
        points = Points((*series.points[:-1].pairs(), (series.points[-1].step, loss)))
        return run.model_copy(
            update={
                "environment": run.environment.model_copy(update={"parts": parts}),
                "metrics": (series.model_copy(update={"points": points}),),
            }
        )

    kept: EvidenceSet = opened.kept.evidence
    runs = tuple(map(moved, kept.runs))
    evidence = kept.model_copy(update={"runs": runs})
    return replace(opened, kept=replace(opened.kept, evidence=evidence))


def test_the_commit_of_a_clone_is_reproduced_without_a_baseline(
    package: Path, project: Project, tmp_path: Path
) -> None:
    found = again(opened_at(package, tmp_path, repository=project.path))
    assert found.outcome is ReproductionOutcome.REPRODUCED
    assert (found.exit_code, found.source) == (ExitCode.PASS, CodeSource.CLONE)
    text = text_of(found)
    assert text.startswith("✅ reproduced, bit for bit\n")
    assert "  code         the package's commit, from a clone\n" in text
    assert "parts unchanged\n" in text
    assert "to reproduce, 2 runs" in text


def test_the_code_of_the_package_is_run_where_there_is_no_clone(
    package: Path, tmp_path: Path
) -> None:
    found = again(opened_at(package, tmp_path))
    assert (found.outcome.good, found.source) == (True, CodeSource.PACKAGE)
    assert "from the package itself" in text_of(found)


def test_without_clone_and_code_it_is_said_what_to_do(bench: Bench, tmp_path: Path) -> None:
    package = packed(bench, tmp_path)
    said = r"commit [0-9a-f]{12} of the package is not in this repository"
    with pytest.raises(RepositoryError, match=said) as raised:
        opened_at(package, tmp_path)
    assert raised.value.hint.startswith("Clone the repository and name it with --repository.")


def test_other_code_is_named_with_its_lines_and_what_it_did(
    package: Path, project: Project, tmp_path: Path
) -> None:
    other = project.play(losses=["2.5", "2.25", "1.125"])
    found = again(opened_at(package, tmp_path, repository=project.path, code=other))
    assert (found.outcome, found.exit_code) == (ReproductionOutcome.DIFFERS, ExitCode.FAIL)
    text = text_of(found)
    assert f"  code         {other[:12]}, files that differ from the package's\n" in text
    assert "  changed      play.json:1\n" in text
    assert re.search(r"loss +3 +2\.125 +1\.125 +47\.1 %", text)
    assert "The code that ran is not the package's" in text


def test_a_changed_work_tree_is_named_by_its_files(
    package: Path, project: Project, tmp_path: Path
) -> None:
    project.write("notes.txt", "changes nothing")
    found = again(opened_at(package, tmp_path, repository=project.path, work_tree=True))
    assert (found.outcome, found.code) == (ReproductionOutcome.REPRODUCED, "work tree")
    assert "  changed      notes.txt\n" in text_of(found)


def test_runs_that_differ_here_say_nothing_of_the_package(
    package: Path, project: Project, tmp_path: Path
) -> None:
    other = project.play(random=True)
    found = again(opened_at(package, tmp_path, repository=project.path, code=other))
    assert found.outcome is ReproductionOutcome.NOT_REPEATABLE
    assert "first fix what differs from run to run" in " ".join(text_of(found).split())


def test_in_the_same_environment_nothing_excuses_other_bits(package: Path, tmp_path: Path) -> None:
    found = again(made_then(opened_at(package, tmp_path), loss=2.126))
    assert found.outcome is ReproductionOutcome.DIFFERS
    assert "Code and environment are unchanged, but the bits differ" in text_of(found)


def test_the_tolerances_of_the_package_count(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    project.write("repro-gate.yml", WITH_SOURCE + TOLERANT)
    project.commit()
    package = packed(bench, tmp_path)
    found = again(made_then(opened_at(package, tmp_path), loss=2.126, driver="1"))
    assert found.outcome is ReproductionOutcome.WITHIN_TOLERANCE
    assert "reproduced within the tolerances of its own settings" in text_of(found)


def test_on_another_machine_the_runs_of_then_make_the_spread(package: Path, tmp_path: Path) -> None:
    opened = opened_at(package, tmp_path)
    far = again(made_then(opened, loss=2.126, driver="550.54"))
    assert far.outcome is ReproductionOutcome.DIFFERS
    text = text_of(far)
    assert "driver 550.54 → none" in text
    assert "the difference is larger than the spread explains" in text
    # as if the default runs of then had varied around what came out here
    moved = made_then(opened, loss=2.126, driver="550.54")
    runs = list(moved.kept.evidence.runs)
    for number, loss in ((1, 2.120), (2, 2.129)):
        runs[number] = made_then(opened, loss=loss, driver="550.54").kept.evidence.runs[number]
    kept = moved.kept.evidence.model_copy(update={"runs": tuple(runs)})
    near = again(replace(moved, kept=replace(moved.kept, evidence=kept)))
    assert near.outcome is ReproductionOutcome.WITHIN_SPREAD
    assert near.spread[0].place is SpreadPlace.RUNS_THEN
    assert text_of(near).startswith("✅ reproduced within the spread of the package's runs\n")


def test_seeds_can_be_trained_here(package: Path, tmp_path: Path) -> None:
    found = again(made_then(opened_at(package, tmp_path), loss=2.126, driver="1"), seeds=3)
    (spread,) = found.spread
    assert (spread.place, spread.values, spread.value) == (SpreadPlace.SEEDS_HERE, 3, 2.126)
    assert "Last values against the spread of the seeds trained here" in text_of(found)


def test_a_package_of_a_dirty_tree_is_refused(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    project.write("notes.txt", "not committed")
    package = packed(bench, tmp_path, allow_dirty=True)
    with pytest.raises(EvidenceError, match="the package was made from uncommitted changes"):
        opened_at(package, tmp_path, repository=project.path)


def test_a_package_that_is_replaced_while_it_is_checked_is_refused(package: Path) -> None:
    kept = open_kept_package(FILES, package)
    check_same_file(kept, hashlib.sha256(package.read_bytes()).hexdigest())
    with pytest.raises(AttestationError, match="package was replaced while it"):
        check_same_file(kept, "0" * 64)


def test_the_verdict_of_a_package_is_read_only_where_it_is_asked_for(package: Path) -> None:
    assert open_kept_package(FILES, package).outcome is None
    assert open_kept_evidence(FILES, package, with_outcome=True).outcome is Outcome.NO_BASELINE


def test_a_package_that_contradicts_itself_is_refused(package: Path, tmp_path: Path) -> None:
    kept = open_kept_package(FILES, package)
    assert kept.call is not None
    call = kept.call.model_copy(update={"settings_digest": "0" * 64})
    other: KeptEvidence = replace(kept, call=call)
    asked = ReproductionCall(package=package, out=tmp_path / "again", data={})
    with pytest.raises(EvidenceError, match="the package contradicts itself"):
        open_for_reproduction(asked, other, FILES, lambda _: pytest.fail("nothing may run"))


@pytest.mark.parametrize("config", ["../../x", "/etc/passwd", "a/../../x", ""])
def test_a_call_outside_of_its_repository_is_refused(config: str) -> None:
    call = {
        "schema_version": CALL_SCHEMA,
        "commit": "a" * 40,
        "config": config,
        "settings_digest": "b" * 64,
        "snapshot_digest": "c" * 64,
        "created_at": "2026-01-01T00:00:00+00:00",
        "gate_version": "1.0.0",
    }
    with pytest.raises(DocumentError) as raised:
        read_document(CallDocument, json.dumps(call).encode(), "call.json", max_bytes=4096)
    assert "config" in raised.value.details[0]


def test_data_that_the_package_does_not_declare_is_refused(package: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="declares no such data by a path") as raised:
        opened_at(package, tmp_path, data={"mini": tmp_path})
    assert raised.value.hint == "Data that it declares by a path: none."


def test_data_may_lie_elsewhere(bench: Bench, project: Project, tmp_path: Path, mini: Path) -> None:
    project.write("repro-gate.yml", f"{WITH_SOURCE}data: [{{path: {mini}}}]\n")
    project.commit()
    package = packed(bench, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    mini.rename(elsewhere)
    found = again(opened_at(package, tmp_path, data={"mini": elsewhere}))
    assert (found.outcome.good, found.data_moved) == (True, ())
    (elsewhere / "rows.csv").write_text("a\n0.5\n")
    moved = again(opened_at(package, tmp_path, data={"mini": elsewhere}))
    assert "  data         mini" in text_of(moved)


@pytest.mark.parametrize(
    ("folder", "words"),
    [(".git", "is a repository"), ("source", "contains source, and the gate did not make")],
)
def test_an_output_folder_of_somebody_is_left_alone(
    package: Path, tmp_path: Path, folder: str, words: str
) -> None:
    (tmp_path / "again" / "source").mkdir(parents=True)
    (tmp_path / "again" / "source" / "mine.py").touch()
    (tmp_path / "again" / folder).mkdir(exist_ok=True)
    with pytest.raises(SettingsError, match=words):
        opened_at(package, tmp_path)
    assert (tmp_path / "again" / "source" / "mine.py").exists()
