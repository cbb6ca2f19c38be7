"""What the harness tells of settings and of several optimizers, as the gate compares it."""

from __future__ import annotations

from pathlib import Path

import pytest
from evidence_cases import record_of, settings_of
from harness_folder import HarnessFolder, exact, step_line

from gate.adapters.files.files import LocalFiles
from gate.comparison.compare import compare_results
from gate.diagnosis.first_divergence import diagnose_drift
from gate.errors import EvidenceError
from gate.evidence.collect import collect_run
from gate.records.observed.evidence import RunEvidence
from gate.report.brief import cause_words

RATES = {"settings": {"0/lr": "0.1"}, "kind": "SGD"}
Line = dict[str, object]


def run_of(files: LocalFiles, harness: HarnessFolder, *lines: Line) -> RunEvidence:
    harness.whole(steps=max(int(str(line["step"])) for line in lines))
    harness.steps(*lines)
    tree = Path(harness.path)
    return collect_run(files, record_of(), harness.path, tree, b"", settings_of().train)


def line_of(step: int, optimizer: int, mark: str, **changes: object) -> Line:
    """A step of one of two optimizers; all that is seen of it depends on `mark`."""
    digest = f"sha256:{ord(mark):064x}"
    seen = dict.fromkeys(("backward", "gradients", "optimizer"), digest)
    line = {"loss": exact(float(ord(mark))), "parameters": digest, "fingerprints": seen}
    return step_line(step, optimizer=optimizer, **{**line, **changes})


def test_settings_are_kept_where_they_move(files: LocalFiles, harness: HarnessFolder) -> None:
    lower = {"settings": {"0/lr": "0.05"}}
    run = run_of(files, harness, step_line(1, **RATES), step_line(2), step_line(3, **lower))
    told = [(one.step, one.settings, one.kinds) for one in run.given]
    name = "state/optimizer/0/group/0/lr"
    assert told == [(1, {name: "0.1"}, {"0": "SGD"}), (3, {name: "0.05"}, {})]


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"0/lr": "<b>"}},
        {"settings": {"0/l|r": "0.1"}},
        {"settings": {"../lr": "0.1"}},
        {"kind": "a b"},
    ],
)
def test_words_that_the_harness_never_writes_are_refused(
    files: LocalFiles, harness: HarnessFolder, changes: Line
) -> None:
    with pytest.raises(EvidenceError, match=r"steps-r0-11\.jsonl: line 1"):
        run_of(files, harness, step_line(1, **changes))


def test_the_update_of_one_optimizer_explains_the_passes_of_the_next(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    equal = run_of(files, harness, line_of(1, 0, "a"), line_of(1, 1, "b"))
    update = line_of(1, 0, "a", parameters=f"sha256:{7:064x}")
    moved = run_of(files, harness, update, line_of(1, 1, "c"))
    compared = compare_results(equal, moved, settings_of().compare, ("baseline", "strict-1"))
    assert [event.name for event in compared.events[:3]] == ["parameters.0", "loss.1", "backward.1"]
    found = diagnose_drift(compared)
    assert found is not None
    assert found.cause_class == "optimizer-or-schedule"
    assert found.cause.startswith("the gradients equal the baseline's")


def test_a_rate_of_one_optimizer_explains_what_the_next_computes_in_that_step(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    higher = {"settings": {"0/lr": "0.2"}, "kind": "SGD"}
    lines = [line_of(1, 0, "a", parameters=None), line_of(1, 1, "b")]
    one = run_of(files, harness, lines[0] | RATES, lines[1])
    other = run_of(files, harness, lines[0] | higher, line_of(1, 1, "c"))
    found = diagnose_drift(compare_results(one, other, settings_of().compare, ("baseline", "s")))
    assert found is not None
    assert (found.subject, found.cause_class) == ("loss.1", "optimizer-or-schedule")
    assert cause_words(found) == "optimizer 0, lr 0.1 → 0.2"
