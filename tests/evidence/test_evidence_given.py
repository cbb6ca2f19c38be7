"""What the harness tells of settings and of several optimizers, as the gate compares it."""

from __future__ import annotations

from pathlib import Path

import pytest
from evidence_cases import record_of, settings_of
from harness_folder import HarnessFolder, exact, step_line

from gate.comparison.compare import compare_results
from gate.diagnosis.causes import work_words
from gate.diagnosis.first_divergence import diagnose_drift
from gate.errors import EvidenceError
from gate.evidence.collect import collect_run
from gate.evidence.run_evidence import RunEvidence
from gate.report.brief import cause_words
from gate.system.files.files import LocalFiles

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
    lines = [line_of(1, 0, "a", parameters=None), line_of(1, 1, "b") | RATES]
    one = run_of(files, harness, lines[0] | RATES, lines[1])
    other = run_of(files, harness, lines[0] | higher, line_of(1, 1, "c") | RATES)
    found = diagnose_drift(compare_results(one, other, settings_of().compare, ("baseline", "s")))
    assert found is not None
    assert (found.subject, found.cause_class) == ("loss.1", "optimizer-or-schedule")
    assert cause_words(found) == "optimizer 0, lr 0.1 → 0.2"


def test_batches_that_are_cut_by_hand_are_told_by_the_first_dimension_of_the_input(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    def of(rows: int | None, samples: int = 0, backwards: int = 1) -> RunEvidence:
        given = {"rows": rows, "samples": samples, "backwards": backwards}
        return run_of(files, harness, step_line(1, **given), step_line(2, **given))

    def cause(one: RunEvidence, other: RunEvidence) -> str:
        moved = other.model_copy(update={"metrics": (), "steps": other.steps})
        compared = compare_results(one, moved, settings_of().compare, ("baseline", "strict-1"))
        found = diagnose_drift(compared)
        return "" if found is None else found.cause

    assert cause(of(64), of(48)) == (
        "each step gives the model 48 rows of input (its first dimension) instead of 64"
    )
    # a closure that is asked once more sees the same rows once more
    assert cause(of(68, backwards=4), of(85, backwards=5)) == (
        "each step makes 5 backward passes instead of 4"
    )
    assert "6 rows of input" in cause(of(68, backwards=4), of(6, backwards=5))
    # accelerate reads a batch ahead: the numbers of the first step are those of no other
    ahead, moved = (
        run_of(files, harness, step_line(1, samples=one), step_line(2, samples=other))
        for one, other in ((30, 20), (50, 40))
    )
    assert cause(ahead, moved) == "step 1 reads 50 samples instead of 30"
    # what a loader counts is known better, and of an unknown shape nothing is said
    assert "rows" not in cause(of(64, samples=8), of(48, samples=8))
    assert "rows" not in cause(of(64), of(None))
    assert of(64, samples=8).given[0].rows is None


def critic(files: LocalFiles, harness: HarnessFolder, each: int, **marks: str) -> RunEvidence:
    """A generator (1) that steps after so many steps of a critic (0), twice."""
    lines = []
    for generator in (1, 2):
        for step in range((generator - 1) * each + 1, generator * each + 1):
            kind = RATES if step == 1 else {}
            lines.append(line_of(step, 0, marks.get(f"c{step}", "a"), **kind))
        kind = RATES if generator == 1 else {}
        lines.append(line_of(generator, 1, marks.get(f"g{generator}", "b"), **kind))
    return run_of(files, harness, *lines)


def test_an_optimizer_that_waits_for_another_comes_after_all_of_its_steps(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    equal = critic(files, harness, 5)
    assert [one.after for one in equal.given] == [{"1": 5}, {"1": 10}, {}]
    # the critic's third step moves its fourth and fifth, and then the generator's first
    moved = critic(files, harness, 5, c3="x", c4="x", c5="x", g1="y", c6="x", g2="y")
    found = diagnose_drift(
        compare_results(equal, moved, settings_of().compare, ("baseline", "strict-1"))
    )
    assert found is not None
    assert (found.subject, found.first_step) == ("loss", 3)


def test_another_number_of_turns_is_a_setting_of_the_run(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    one, other = critic(files, harness, 5), critic(files, harness, 4, g1="y")
    compared = compare_results(one, other, settings_of().compare, ("baseline", "strict-1"))
    (change,) = compared.work
    assert work_words(change) == (
        "optimizer 1 makes its step 1 after 4 steps of optimizer 0 instead of 5"
    )
    alternately = critic(files, harness, 1)
    (change,) = compare_results(alternately, one, settings_of().compare, ("baseline", "s")).work
    assert (change.before, change.after) == (1, 5)


def test_a_turn_that_is_left_out_later_is_a_setting_of_the_run(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    def of(*turns: tuple[int, int]) -> RunEvidence:
        kinds = [RATES if step == 1 else {} for step, _ in turns]
        marks = [line_of(step, optimizer, "ab"[optimizer]) for step, optimizer in turns]
        lines = [line | kind for line, kind in zip(marks, kinds, strict=True)]
        return run_of(files, harness, *lines)

    each = of((1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1))
    other = of((1, 0), (1, 1), (2, 0), (3, 0), (2, 1))
    compared = compare_results(each, other, settings_of().compare, ("baseline", "s"))
    found = diagnose_drift(compared)
    assert found is not None
    assert found.cause == "optimizer 1 makes its step 2 after 3 steps of optimizer 0 instead of 2"


def test_an_optimizer_without_a_loss_of_its_own_is_known_to_be_there_at_the_first_step(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    """Two optimizers step behind one backward pass, which is told to belong to the first."""

    def of(*turns: tuple[int, int]) -> RunEvidence:
        silent: Line = {"loss": None, "losses": []}
        return run_of(
            files,
            harness,
            *(
                line_of(step, optimizer, "ab"[optimizer], **(silent if optimizer else {}))
                | (RATES if step == 1 else {})
                for step, optimizer in turns
            ),
        )

    each, other = of((1, 0), (1, 1), (2, 0)), of((1, 0), (2, 0), (1, 1))
    changes = compare_results(each, other, settings_of().compare, ("baseline", "s")).work
    assert "optimizer 1 makes its step 1 after 2 steps of optimizer 0 instead of 1" in [
        work_words(change) for change in changes
    ]


def test_models_that_are_trained_one_after_the_other_have_no_step_in_common(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    def folds(steps: int, samples: int) -> RunEvidence:
        lines = [
            line_of(step, fold, "a", samples=samples, **(RATES if step == 1 else {}))
            for fold in range(10)
            for step in range(1, steps + 1)
        ]
        return run_of(files, harness, *lines)

    compared = compare_results(folds(6, 20), folds(4, 30), settings_of().compare, ("baseline", "s"))
    assert [work_words(change) for change in compared.work] == [
        "each step reads 30 samples instead of 20"
    ]


def test_a_setting_of_the_run_leads_where_the_environment_moved_as_well(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    higher = {"settings": {"0/lr": "0.2"}, "kind": "SGD"}
    one = run_of(files, harness, line_of(1, 0, "a") | RATES)
    update = line_of(1, 0, "a", parameters=f"sha256:{7:064x}") | higher
    other = run_of(files, harness, update, line_of(2, 0, "c"))
    moved = {**other.environment.parts, "cpu": "another"}
    other = other.model_copy(
        update={"environment": other.environment.model_copy(update={"parts": moved})}
    )
    compared = compare_results(one, other, settings_of().compare, ("baseline", "strict-1"))
    found = diagnose_drift(compared)
    assert found is not None
    assert cause_words(found) == "lr 0.1 → 0.2"
    assert "the environment moved since the baseline was recorded: cpu" in found.details
    # without one, what moved is what is known
    same = run_of(files, harness, line_of(1, 0, "c") | RATES)
    same = same.model_copy(update={"environment": other.environment})
    compared = compare_results(one, same, settings_of().compare, ("baseline", "strict-1"))
    found = diagnose_drift(compared)
    assert found is not None
    assert found.cause.startswith("the environment moved since the baseline was recorded: cpu")
