"""The provenance: what it says, in whose form, and that it agrees with verdict and package."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attestation_cases import COMMIT, FILES, MAKING, Sealed, gate_key, sealed_in, signed
from each_row import each_row

from gate.errors import AttestationError
from gate.evidence.observations import OverrideKind
from gate.package.envelope import read_envelope
from gate.package.provenance import (
    MAX_PROVENANCE_BYTES,
    OverrideSeen,
    ProvenanceFacts,
    read_provenance,
    write_provenance,
)
from gate.package.seal_records import SealFile
from gate.text.digests import sha256_hex
from gate.text.json_text import canonical_json

Change = Callable[[Any], object]
SEEN = OverrideSeen(
    kind=OverrideKind.RESEED, name="seed", before="42", after="7", file="train.py", line=3, rank=0
)


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    return sealed_in(tmp_path)


@pytest.fixture
def facts(sealed: Sealed) -> ProvenanceFacts:
    return read_provenance(read_envelope(sealed.seals[2]).payload)


def _refusal(sealed: Sealed, facts: ProvenanceFacts) -> str:
    """What `verify` says of another provenance that the trusted key signed."""
    (seal,) = signed(write_provenance(facts))
    with pytest.raises(AttestationError) as caught:
        sealed.verified(seals=(*sealed.seals[:2], seal, sealed.seals[4]))
    assert caught.value.hint
    return caught.value.message


def test_it_is_a_slsa_provenance_and_claims_no_level(sealed: Sealed) -> None:
    value = json.loads(read_envelope(sealed.seals[2]).payload)
    assert (value["_type"], value["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert [each["name"] for each in value["subject"]] == [
        "package.tar",
        "checkpoint/state.safetensors",
    ]
    made, run = value["predicate"]["buildDefinition"], value["predicate"]["runDetails"]
    assert made["buildType"] == "urn:repro-gate:smoke-training:v1"
    assert made["externalParameters"]["settings"] == MAKING.settings
    assert made["internalParameters"] == {"ranks": 1}
    assert made["resolvedDependencies"][:2] == [
        {"name": "commit", "digest": {"gitCommit": COMMIT}},
        {"name": "tree", "digest": {"reproGateTree": "d" * 64}},
    ]
    assert made["resolvedDependencies"][2:] == [
        {"name": "baseline.json", "digest": {"sha256": "b" * 64}},
        {"name": "locks/uv.lock", "digest": {"sha256": sha256_hex(b"locked")}},
    ]
    assert run["builder"] == {"id": "urn:repro-gate:gate:v1", "version": {"repro-gate": "1.0.0"}}
    assert run["metadata"] == {"invocationId": "42", "finishedOn": "2026-01-31T12:00:00Z"}
    assert "slsa_level" not in json.dumps(value).lower()


def test_equal_facts_are_equal_bytes(facts: ProvenanceFacts) -> None:
    seen = replace(facts, making=replace(facts.making, overrides=(SEEN,), overridden=9))
    assert read_provenance(write_provenance(seen)) == seen
    assert write_provenance(read_provenance(write_provenance(seen))) == write_provenance(seen)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commit": "f" * 40}, f"says commit '{'f' * 40}', verdict and package say '{COMMIT}'"),
        ({"settings_digest": "1" * 64}, "says settings_digest '1111"),
        ({"snapshot_digest": "1" * 64}, f"verdict and package say '{'d' * 64}'"),
        ({"baseline_digest": ""}, f"says baseline_digest '', verdict and package say '{'b' * 64}'"),
        ({"image": "1" * 64}, "says image '1111"),
        ({"data": (("x", "1" * 64),)}, "says data "),
        ({"repository": "evil/fork"}, "says repository 'evil/fork'"),
        ({"run_id": "43"}, "says run_id '43', verdict and package say '42'"),
        ({"gate_version": "2"}, "says gate_version '2'"),
        ({"finished_at": "2026-01-31T12:00:01Z"}, "says finished_at '2026-01-31T12:00:01Z'"),
        ({"package_sha256": "1" * 64}, "says package_sha256 '1111"),
        ({"package_name": "other.tar"}, "says package_name 'other.tar'"),
        ({"model": ()}, "says model ''"),
        ({"model": (("checkpoint/state.safetensors", "1" * 64),)}, "says model "),
        ({"byproducts": ()}, "says byproducts ''"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_provenance_that_disagrees_is_refused(
    sealed: Sealed, facts: ProvenanceFacts, change: dict[str, Any], message: str
) -> None:
    assert message in _refusal(sealed, replace(facts, **change))


def test_other_settings_under_the_right_digest_are_refused(
    sealed: Sealed, facts: ProvenanceFacts
) -> None:
    settings: dict[str, Any] = {"train": {"command": ["python", "train.py"], "seed": 43}}
    message = _refusal(sealed, replace(facts, making=replace(facts.making, settings=settings)))
    assert message == "the provenance lists other settings than the ones that were judged by"


@each_row(
    ("name", "content", "message"),
    [
        ("locks/uv.lock", b"other", "locks/uv.lock in the package is not the one that the"),
        ("locks/more.txt", b"x", "locks/more.txt in the package is not the one that the"),
        ("baseline.json", b"{}", "baseline.json in the package is not the one that the"),
        ("cluster.json", b'{"ranks":2}', "describes another machine than cluster.json"),
        ("cluster.json", b'{"ranks":1e400}', "describes another machine than cluster.json"),
        ("cluster.json", b"[]", "cluster.json: not a JSON object"),
        ("cluster.json", b'{"ranks":1,"ranks":1}', "key 'ranks' is given twice"),
    ],
)
def test_members_that_the_provenance_does_not_describe_are_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    sealed = sealed_in(tmp_path, more={name: content})
    with pytest.raises(AttestationError) as caught:
        sealed.verified()
    assert message in caught.value.message


def test_members_that_it_describes_are_taken(tmp_path: Path) -> None:
    more = {"cluster.json": b'{"ranks": 1}\n', "locks/uv.lock": b"locked"}
    assert sealed_in(tmp_path, more=more).verified().members == 5


FORMS: dict[str, tuple[Change, str]] = {
    "unknown key": (
        lambda value: value["predicate"].update(more=1),
        "predicate.more: is not a known key",
    ),
    "another builder": (
        lambda value: value["predicate"]["runDetails"]["builder"].update(id="urn:evil"),
        "must be 'urn:repro-gate:gate:v1'",
    ),
    "another build": (
        lambda value: value["predicate"]["buildDefinition"].update(buildType="urn:x"),
        "must be 'urn:repro-gate:smoke-training:v1'",
    ),
    "dependencies in a different order": (
        lambda value: value["predicate"]["buildDefinition"]["resolvedDependencies"].reverse(),
        "not written as repro-gate writes it",
    ),
    "a dependency twice": (
        lambda value: value["predicate"]["buildDefinition"]["resolvedDependencies"].append(
            {"name": "commit", "digest": {"gitCommit": "f" * 40}}
        ),
        "not written as repro-gate writes it",
    ),
    "an unknown dependency": (
        lambda value: value["predicate"]["buildDefinition"]["resolvedDependencies"].append(
            {"name": "x", "digest": {"sha256": "f" * 64}}
        ),
        "not written as repro-gate writes it",
    ),
    "no subject": (lambda value: value.update(subject=[]), "subject: "),
    "a key by its other name": (
        lambda value: value["predicate"].update(
            build_definition=value["predicate"].pop("buildDefinition")
        ),
        "not written as repro-gate writes it",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_another_form_is_refused(facts: ProvenanceFacts, name: str) -> None:
    change, message = FORMS[name]
    value = json.loads(write_provenance(facts))
    change(value)
    with pytest.raises(AttestationError) as caught:
        read_provenance(canonical_json(value))
    assert message in str(caught.value)


def test_facts_that_no_statement_can_say_are_refused(facts: ProvenanceFacts) -> None:
    with pytest.raises(AttestationError, match="cannot be sealed") as caught:
        write_provenance(replace(facts, commit=""))
    assert "pattern" in caught.value.details[0]


def test_a_number_beyond_all_numbers_is_refused(sealed: Sealed, facts: ProvenanceFacts) -> None:
    payload = write_provenance(facts).replace(b'"seed":42', b'"seed":1e400')
    with pytest.raises(AttestationError, match="a number that JSON cannot express"):
        read_provenance(payload)
    (seal,) = signed(payload)
    with pytest.raises(AttestationError, match="a number that JSON cannot express"):
        sealed.verified(seals=(*sealed.seals[:2], seal, sealed.seals[4]))


def test_one_that_nobody_could_read_is_not_written(facts: ProvenanceFacts) -> None:
    settings = {"train": "x" * MAX_PROVENANCE_BYTES}
    with pytest.raises(AttestationError, match="the limit is 5,242,880"):
        write_provenance(replace(facts, making=replace(facts.making, settings=settings)))


def test_a_seal_holds_what_its_name_says(sealed: Sealed) -> None:
    verdict, _, provenance, _, model = sealed.seals
    swapped = (_named(verdict, provenance), _named(provenance, verdict), model)
    with pytest.raises(AttestationError) as caught:
        sealed.verified(seals=swapped)
    assert caught.value.message == ("package.dsse.json holds a provenance, where a verdict belongs")


def _named(name: SealFile, content: SealFile) -> SealFile:
    return replace(name, content=content.content)


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ((2, 3, 4), "a verdict is missing among the seals of package.tar"),
        ((0, 1, 4), "a provenance is missing among the seals of package.tar"),
        ((0, 1, 2, 3), "a model signature is missing among the seals of package.tar"),
    ],
)
def test_every_statement_is_needed(sealed: Sealed, left: tuple[int, ...], message: str) -> None:
    with pytest.raises(AttestationError) as caught:
        sealed.verified(seals=tuple(sealed.seals[index] for index in left))
    assert caught.value.message == message
    assert "beside package.tar, or name it with --seal as well" in caught.value.hint


def test_the_provenance_of_another_package_is_refused(sealed: Sealed, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = sealed_in(tmp_path / "other", more={"z": b"z"}, key=gate_key())
    with pytest.raises(AttestationError, match="the provenance says package_sha256"):
        sealed.verified(seals=(*sealed.seals[:2], other.seals[2], sealed.seals[4]))
    with pytest.raises(AttestationError, match="seal different statements"):
        sealed.verified(seals=(*sealed.seals[:3], other.seals[3], sealed.seals[4]))


def test_a_statement_of_another_kind_is_refused(sealed: Sealed) -> None:
    for payload, told in (
        ({"predicateType": "urn:x"}, "predicateType 'urn:x'"),
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "_type 'https://in-toto.io/Statement/v0"),
    ):
        value = json.loads(read_envelope(sealed.seals[0]).payload) | payload
        with pytest.raises(AttestationError) as caught:
            sealed.verified(seals=(*sealed.seals, *signed(json.dumps(value).encode())))
        assert told in caught.value.message
        assert "which is not one that repro-gate writes" in caught.value.message
    assert FILES.exists(sealed.path)
