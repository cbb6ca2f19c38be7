from __future__ import annotations

from evidence_cases import evidence_of

from gate.records.evidence import RunEvidence
from gate.records.tampering import Tampering, TamperKind
from gate.records.verdict import Finding, Severity
from gate.verdict.tampering import tampering


def deed(line: int = 12, **changes: object) -> Tampering:
    plain = Tampering(
        rank=0,
        pid=1,
        step=3,
        kind=TamperKind.SWITCH,
        name="cudnn_benchmark",
        before="off",
        after="on",
        file="train.py",
        line=line,
        closed=False,
        restored=False,
    )
    return plain.model_copy(update=changes)


def run(*deeds: Tampering) -> RunEvidence:
    return evidence_of().model_copy(update={"tampering": deeds})


def found(*deeds: Tampering) -> tuple[Finding, ...]:
    return tampering((run(*deeds), run(*deeds)))


def test_an_untouched_run_has_no_finding() -> None:
    assert found() == tampering(()) == ()


def test_a_knob_that_was_turned_back_is_told_with_its_place_and_step() -> None:
    (finding,) = found(deed(), deed(step=9))
    assert (finding.code, finding.severity) == ("tampered", Severity.WARNING)
    assert finding.message == (
        "train.py:12 turned cudnn_benchmark from off to on at step 3 and later"
    )


def test_what_the_guest_put_back_is_said() -> None:
    (finding,) = found(deed(restored=True, before=""))
    assert finding.message == (
        "train.py:12 turned cudnn_benchmark from unset to on at step 3; the guest put it back"
    )


def test_a_deed_that_nobody_saw_has_an_unseen_place() -> None:
    (finding,) = found(deed(file="", line=0))
    assert finding.message.startswith("an unseen place turned cudnn_benchmark")


def test_the_first_places_are_shown_and_the_rest_counted() -> None:
    shown = found(*(deed(line) for line in range(1, 9)))
    assert len(shown) == 5
    assert shown[-1].message.endswith("(and 3 more place(s))")


def test_a_declared_hole_is_a_notice_of_its_own() -> None:
    (finding,) = found(deed(name="deterministic_algorithms", closed=True))
    assert (finding.code, finding.severity) == ("declared-hole", Severity.NOTICE)
    assert finding.message == (
        "deterministic algorithms are put aside and taken up again in 1 place(s): train.py:12"
    )


def test_a_seed_from_outside_is_told() -> None:
    (finding,) = found(deed(kind=TamperKind.ENTROPY, name="torch.seed"))
    assert finding.message == "train.py:12 takes a seed from outside at step 3: torch.seed"


def test_a_seed_that_is_the_same_in_each_run_is_no_finding() -> None:
    assert found(deed(kind=TamperKind.RESEED, name="torch.manual_seed", after="42")) == ()


def test_a_seed_that_differs_between_runs_is_told() -> None:
    seeds = [deed(kind=TamperKind.RESEED, name="random.seed", after=text) for text in "12"]
    (finding,) = tampering((run(seeds[0]), run(seeds[1])))
    assert finding.code == "seed-differs"
    assert finding.message == "train.py:12 gives random.seed another seed in each run"
    assert tampering((run(seeds[0]),)) == ()
