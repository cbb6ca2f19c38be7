"""What a pull request changes in the files that decide, field by field."""

from __future__ import annotations

import json

import pytest
from baseline_cases import folder_of
from evidence_cases import COMMIT, CREATED_AT, manifest_of, series_of

from gate.baseline.entry import BaselineEntry
from gate.evidence.step_columns import StepDigests
from gate.package.seal_records import KeyStatus, TrustedKey, TrustedKeys
from gate.pipelines.policy_changes import (
    baseline_changes,
    key_changes,
    root_changes,
    settings_changes,
)
from gate.text.documents import write_document
from gate.training.environment import Environment

MINIMAL = b"version: 1\ntrain: {command: python t.py, max_steps: 3}\n"
ID = "a" * 64


def shown(changes: tuple[object, ...]) -> list[str]:
    return [
        f"{getattr(one, 'what')}: {getattr(one, 'before')} -> {getattr(one, 'after')}"  # noqa: B009
        for one in changes
    ]


def entry(*, loss: float = 2.125, torch: str = "2.13.0", weights: bytes = b"w") -> BaselineEntry:
    return BaselineEntry(
        commit=COMMIT,
        recorded_at=CREATED_AT,
        training={},
        environment=Environment(parts={"device": "cpu", "torch": torch, "python": "3.11.7"}),
        metrics=(series_of((2.5, loss)),),
        steps=StepDigests(),
        checkpoint=manifest_of(w=weights),
    )


def keys(**changes: object) -> bytes:
    key = {"key_id": ID, "raw_bytes": "AAAA", "key_details": "PKIX_ECDSA_P256_SHA_256"}
    made = TrustedKey.model_validate({**key, "added_at": CREATED_AT, **changes})
    return write_document(TrustedKeys(keys=(made,)))


def test_each_setting_is_told_with_its_old_and_its_new_value() -> None:
    after = MINIMAL + (
        b"compare: {tolerances: [{metric: '*', absolute: 100}]}\nisolation: {mode: none}\n"
    )
    tolerance, isolation = shown(settings_changes("repro-gate.yml", MINIMAL, after))
    assert tolerance.startswith('compare.tolerances: [] -> [{"metric": "*", "absolute": 100.0')
    assert isolation == "isolation.mode: auto -> none"


def test_nothing_is_told_of_a_file_that_stays() -> None:
    assert settings_changes("f", MINIMAL, MINIMAL) == ()
    assert shown(settings_changes("f", MINIMAL, b"# why\n" + MINIMAL)) == ["formatting only:  -> "]


def test_a_baseline_that_moves_tells_which_numbers_did() -> None:
    changes = shown(baseline_changes("b", folder_of(entry()), folder_of(entry(loss=9.0))))
    assert len(changes) == 1
    assert changes[0].startswith("cpu-1-rank-torch-2.13.0-")
    assert "loss: last 2.125, series" in changes[0]
    assert "-> last 9.0, series" in changes[0]


def root(log: dict[str, object]) -> bytes:
    services = {"tlogs": [log], "certificateAuthorities": [{"uri": "https://ca.example"}]}
    return json.dumps({"mediaType": "m", **services}).encode()


def test_a_trusted_root_is_told_by_its_services_and_their_keys() -> None:
    before = root({"baseUrl": "https://log.example", "publicKey": {"rawBytes": "AAAA"}})
    after = root({"baseUrl": "https://log.example", "publicKey": {"rawBytes": "BBBB"}})
    changes = shown(root_changes("root.json", before, after))
    assert (
        sorted(change.partition("(")[0] for change in changes) == ["log https://log.example "] * 2
    )
    assert sorted(change.partition("): ")[2] for change in changes) == [
        " -> trusted",
        "trusted -> ",
    ]
    assert len({change[24:36] for change in changes}) == 2
    assert "certificate authority https://ca.example" in "".join(
        shown(root_changes("root.json", None, after))
    )
    assert root_changes("root.json", before, before) == ()


@pytest.mark.parametrize("data", [b"", b"[]", b'{"tlogs": [}'])
def test_a_trusted_root_that_is_none_is_told_as_a_whole(data: bytes) -> None:
    (change,) = root_changes("root.json", root({}), data)
    assert (change.what, change.after[:15]) == ("the whole file", "cannot be read:")


def test_an_address_of_a_trusted_root_shows_as_itself() -> None:
    hostile = root({"baseUrl": "\ud800\x1b[2J\n" + "x" * 999, "kept": [7, None]})
    (change, *_) = [one for one in root_changes("r", None, hostile) if one.what.startswith("log ")]
    assert change.what.isprintable()
    assert root_changes("r", None, b'{"tlogs": {"a": 1}, "b": [1]}')


def test_entries_that_come_and_go_are_told() -> None:
    changes = shown(baseline_changes("b", folder_of(entry()), folder_of(entry(torch="9"))))
    went, came = sorted(one for one in changes if ": entry: " in one)
    assert went.startswith("cpu-1-rank-torch-2.13.0-")
    assert went.endswith("entry: there -> ")
    assert came.startswith("cpu-1-rank-torch-9-")
    assert came.endswith("entry:  -> there")


def test_a_key_that_is_swapped_or_brought_back_is_told() -> None:
    assert shown(key_changes("k", keys(), keys(raw_bytes="BBBB"))) == [
        f"key {ID}: public key: AAAA -> BBBB"
    ]
    revoked = keys(status=KeyStatus.REVOKED, revoked_at=CREATED_AT)
    assert shown(key_changes("k", revoked, keys())) == [
        f"key {ID}: revoked -> active",
        f"key {ID}: revoked at: {CREATED_AT} -> ",
    ]
    assert f"key {ID}:  -> active" in shown(key_changes("k", None, keys()))


def test_a_retirement_that_is_put_off_is_told() -> None:
    before, after = (
        keys(status=KeyStatus.RETIRED, retired_at=at)
        for at in ("2026-01-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00")
    )
    assert shown(key_changes("k", before, after)) == [
        f"key {ID}: retired at: 2026-01-01T00:00:00+00:00 -> 2027-01-01T00:00:00+00:00"
    ]


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (b"version: [", "the whole file:  -> cannot be read: f: not valid YAML"),
        (b"\xff", "the whole file:  -> cannot be read: "),
        (b"", "the whole file:  -> cannot be read: f: is empty"),
    ],
)
def test_a_side_that_cannot_be_read_is_told_and_does_no_harm(after: bytes, told: str) -> None:
    (change,) = shown(settings_changes("f", MINIMAL, after))
    assert change.startswith(told)


def test_long_values_and_many_changes_are_cut() -> None:
    pairs = ", ".join(f"V{number:04}: {'x' * 500}" for number in range(300))
    after = f"version: 1\ntrain: {{command: c, max_steps: 3, env: {{{pairs}}}}}\n".encode()
    changes = settings_changes("f", MINIMAL, after)
    assert len(changes) == 201
    assert changes[-1].what == "and 101 more"
    assert max(len(one.after) for one in changes) == 300
