"""Sealing: only what passes, only what was committed, only the verdict that is packed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attestation_cases import (
    CHANGED_TENSOR,
    CONTEXT,
    EQUAL,
    FILES,
    MAKING,
    member,
    members_of,
    pack_to,
    sealed_in,
    verdict_of,
)
from each_row import each_row

from gate.comparison.differences import Comparison
from gate.diagnosis.diagnosis import ResumeResult, ResumeState
from gate.errors import AttestationError
from gate.evidence.observations import KilledSave, LeftBy
from gate.package.envelope import read_envelope
from gate.package.keys import generate_private_key
from gate.package.seal import statement_facts, statements_of
from gate.package.seal_files import find_seals, seal_paths, write_seals
from gate.package.seal_records import KeyAlgorithm, StatementKind
from gate.package.statement import Property
from gate.settings.variations import KillPoint
from gate.verdict.verdict import Outcome, Verdict

# without what only a resume shows
OF_RESUME = (Property.RESUMES_EXACTLY, Property.SURVIVES_KILLS)
ALL = tuple(one for one in Property if one not in OF_RESUME)
GOOD = (LeftBy.COMPLETE, LeftBy.BESIDE)
DIFFERENT = EQUAL.model_copy(update={"tensors": (CHANGED_TENSOR,)})
NOTHING = EQUAL.model_copy(update={"compared_points": 0})


def _properties(folder: Path, **changes: object) -> tuple[Property, ...]:
    verdict = verdict_of(**changes)
    package = pack_to(folder / "package.tar", *members_of(verdict))
    return statement_facts(verdict, package, CONTEXT).properties


def _refusal(folder: Path, verdict: Verdict) -> str:
    with pytest.raises(AttestationError) as caught:
        sealed_in(folder, verdict)
    assert caught.value.hint
    return caught.value.message


def test_both_forms_seal_the_same_statement(tmp_path: Path) -> None:
    seals = sealed_in(tmp_path).seals
    assert [each.name for each in seals] == [
        "package.dsse.json",
        "package.sigstore.json",
        "package.provenance.dsse.json",
        "package.provenance.sigstore.json",
        "package.model.sig",
    ]
    bare, bundle, made, made_bundle, _ = [read_envelope(each).payload for each in seals]
    assert (bare, made) == (bundle, made_bundle)


def test_an_ed25519_key_signs_no_model(tmp_path: Path) -> None:
    key = generate_private_key(KeyAlgorithm.ED25519)
    assert [each.kind for each in sealed_in(tmp_path, key=key).seals] == [
        *[StatementKind.VERDICT] * 2,
        *[StatementKind.PROVENANCE] * 2,
    ]


def test_seal_says_where_it_was_made(tmp_path: Path) -> None:
    claims = json.loads(read_envelope(sealed_in(tmp_path).seals[0]).payload)["predicate"]
    assert claims["reproGate"]["repository"] == "org/repo"
    assert claims["reproGate"]["runId"] == "42"
    assert claims["reproGate"]["isolation"] == {
        "mode": "none",
        "guard": None,
        "network": False,
        "deviceGroups": [],
        "image": "",
        "own": [],
        "job": None,
        "otherNodes": False,
    }


@pytest.mark.parametrize("outcome", [Outcome.CODE_DRIFT, Outcome.NONDETERMINISTIC, Outcome.ERROR])
def test_verdict_that_does_not_pass_is_never_sealed(tmp_path: Path, outcome: Outcome) -> None:
    message = _refusal(tmp_path, verdict_of(outcome=outcome, passes=False))
    assert message == f"only a passing verdict is sealed; this one is {outcome}"


def test_uncommitted_changes_are_never_sealed(tmp_path: Path) -> None:
    message = _refusal(tmp_path, verdict_of(changed_files=("train.py",)))
    assert message == ("the training used uncommitted changes, so no commit can be sealed")


@pytest.mark.parametrize("name", ["commit", "checkpoint_root", "snapshot_digest"])
def test_verdict_that_lacks_a_fact_is_refused(tmp_path: Path, name: str) -> None:
    assert _refusal(tmp_path, verdict_of(**{name: ""})) == "these facts cannot be sealed"


@pytest.mark.parametrize("cause", ["another verdict", None])
def test_package_must_hold_this_verdict(tmp_path: Path, cause: str | None) -> None:
    members = members_of(verdict_of(cause=cause)) if cause else (member("a"),)
    package = pack_to(tmp_path / "package.tar", *members)
    with pytest.raises(AttestationError, match=r"verdict\.json is not the verdict that is to be"):
        statements_of(verdict_of(), package, CONTEXT, MAKING)


@each_row(
    ("repeat", "baseline", "wanted"),
    [
        (EQUAL, EQUAL, ALL),
        (DIFFERENT, EQUAL, (ALL[0], *ALL[2:])),
        (EQUAL, DIFFERENT, ALL[:3]),
        (EQUAL, NOTHING, ALL[:2]),
        (None, None, ALL[:1]),
    ],
    ids=["all", "not-repeated", "other-checkpoint", "nothing-compared", "no-comparison"],
)
def test_only_properties_that_hold_are_claimed(
    tmp_path: Path,
    repeat: Comparison | None,
    baseline: Comparison | None,
    wanted: tuple[Property, ...],
) -> None:
    assert _properties(tmp_path, repeat=repeat, baseline=baseline) == wanted


def test_a_resume_is_claimed_where_it_is_exact_alone(tmp_path: Path) -> None:
    for state in ResumeState:
        resume = ResumeResult(state=state, checkpoint="last.pt", step=10, steps=20)
        claimed = _properties(tmp_path, repeat=EQUAL, baseline=EQUAL, resume=resume)
        assert (Property.RESUMES_EXACTLY in claimed) == (state is ResumeState.EXACT)


def test_a_save_is_claimed_where_it_was_killed_at_each_point_and_left_something_complete(
    tmp_path: Path,
) -> None:
    good = tuple(KilledSave(point=point, left=LeftBy.COMPLETE) for point in KillPoint)
    beside = good[0].model_copy(update={"left": LeftBy.BESIDE})
    unsaid = [good[0].model_copy(update={"left": left}) for left in LeftBy if left not in GOOD]
    told = ResumeResult(state=ResumeState.EXACT, checkpoint="last.pt", step=10, steps=20)
    for kills, claimed in (
        (good, True),
        ((beside, *good[1:]), True),
        ((), False),
        (good[:2], False),
        *(((one, *good[1:]), False) for one in unsaid),
    ):
        resume = told.model_copy(update={"kills": kills})
        properties = _properties(tmp_path, repeat=EQUAL, baseline=EQUAL, resume=resume)
        assert (Property.SURVIVES_KILLS in properties) == claimed


def test_written_seals_are_found_beside_the_package(tmp_path: Path) -> None:
    sealed = sealed_in(tmp_path)
    write_seals(sealed.seals, sealed.path, FILES)
    bare, bundle, *_ = seal_paths(sealed.path)
    assert find_seals(sealed.path, FILES) == sealed.seals
    assert find_seals(sealed.path, FILES, (bundle,)) == sealed.seals[1:2]
    bare.unlink()
    assert find_seals(sealed.path, FILES) == sealed.seals[1:]


def test_missing_seal_is_told(tmp_path: Path) -> None:
    with pytest.raises(AttestationError) as caught:
        find_seals(tmp_path / "package.tar", FILES)
    assert caught.value.message == "no seal found next to package.tar"
    assert "package.dsse.json or package.sigstore.json" in caught.value.hint
