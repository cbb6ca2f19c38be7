"""The law of seals: whatever field of whatever document is changed, it is refused in one line.

Twice: changed after it was signed, and changed by a signer whose key is trusted. The second can
only be found out where two places say the same, which is everything but what `CLAIMS` lists.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attestation_cases import MAKING, Sealed, gate_key, sealed_in, trust_of

from gate.errors import AttestationError
from gate.package.envelope import read_envelope, sign, write_bundle, write_envelope
from gate.package.keys import KeyFile, read_trusted_keys
from gate.package.seal_records import PAYLOAD_TYPE, SealFile
from gate.text.json_text import canonical_json

Path_ = tuple[str | int, ...]
# what the signer alone knows: no second place says it
CLAIMS = ("seeds", "overrides", "overridden")
MORE = {"cluster.json": canonical_json(MAKING.cluster), "locks/uv.lock": b"locked"}
# neither is signed, and neither decides anything
HINTS = ("keyid", "hint")
SEALS = ("verdict", "verdict bundle", "provenance", "provenance bundle", "model")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    return sealed_in(tmp_path_factory.mktemp("sealed"), more=MORE)


def _places(value: object, here: Path_ = ()) -> Iterator[Path_]:
    """The way to every value of a document, the document itself among them."""
    yield here
    items: Iterator[tuple[str | int, object]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for key, each in items:
        yield from _places(each, (*here, key))


def _other(value: object) -> Iterator[object]:
    """Values in place of another: of its own kind, of every other kind, and unreasonable ones."""
    yield from (None, True, 0, -1, 1.5, 2**70, "", "\u202e\n\x1b[31m", [], {}, [[]], {"": {}})
    if isinstance(value, str):
        yield value + " "
        yield value[:-1] + ("0" if value[-1:] != "0" else "1")
        yield value.swapcase()
    elif isinstance(value, list):
        yield [*value, *value[:1]]
        yield value[1:]
    elif isinstance(value, dict):
        yield {**value, "more": 1}
        yield dict(list(value.items())[1:])


def _with(document: Any, place: Path_, value: object) -> Any:  # noqa: ANN401 - any JSON
    if not place:
        return value
    changed = json.loads(json.dumps(document))
    inner = changed
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return changed


def _mutations(document: object, except_below: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    for place in _places(document):
        if place and place[-1] in except_below:
            continue
        if set(place) & set(except_below):
            continue
        value: Any = document
        for step in place:
            value = value[step]
        for other in _other(value):
            if json.dumps(other) != json.dumps(value):
                yield place, _with(document, place, other)


def _accepted(
    mutations: Iterator[tuple[Path_, Any]], attempt: Callable[[Any], object]
) -> list[tuple[Path_, str]]:
    """Every mutation that was not refused, or not in one line with a hint."""
    wrong = []
    for place, document in mutations:
        try:
            attempt(document)
        except AttestationError as error:
            if not error.hint or not error.message.isprintable() or len(error.message) > 800:
                wrong.append((place, error.message))
        else:
            wrong.append((place, json.dumps(document)[:300]))
    return wrong


@pytest.mark.parametrize("index", range(5), ids=SEALS)
def test_no_field_of_a_seal_can_be_changed(sealed: Sealed, index: int) -> None:
    seals = list(sealed.seals)
    original = json.loads(seals[index].content)

    def attempt(document: object) -> None:
        content = json.dumps(document).encode()
        sealed.verified(
            seals=(*seals[:index], replace(seals[index], content=content), *seals[index + 1 :])
        )

    mutations = (
        each
        for each in _mutations(original, HINTS)
        if _without_hints(each[1]) != _without_hints(original)
    )
    assert _accepted(mutations, attempt) == []


def _without_hints(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {key: _without_hints(each) for key, each in value.items() if key not in HINTS}
    return [_without_hints(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("index", [0, 2, 4], ids=[SEALS[0], SEALS[2], SEALS[4]])
def test_no_field_of_a_statement_can_be_another_though_it_is_signed(
    sealed: Sealed, index: int
) -> None:
    others = [sealed.seals[each] for each in (0, 2, 4) if each != index]

    def attempt(document: object) -> None:
        payload = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        sealed.verified(seals=(*others, _resigned(sealed.seals[index], payload)))

    statement = json.loads(read_envelope(sealed.seals[index]).payload)
    assert _accepted(_mutations(statement, CLAIMS), attempt) == []


def _resigned(seal: SealFile, payload: bytes) -> SealFile:
    envelope = sign(payload, PAYLOAD_TYPE, KeyFile(gate_key()))
    write = write_envelope if seal.name.endswith(".dsse.json") else write_bundle
    return replace(seal, content=write(envelope))


def test_no_field_of_a_trust_file_can_be_of_another_kind() -> None:
    document = trust_of().model_dump(mode="json")
    free = ("comment", "added_at", "reason")

    def attempt(changed: object) -> None:
        found = read_trusted_keys(json.dumps(changed).encode(), "trusted-keys.json")
        # a file without keys trusts nobody, and a status is told by its own test
        assert found.keys

    mutations = (
        each for each in _mutations(document, free) if each[0] != ("keys",) or each[1]["keys"]
    )
    assert _accepted(mutations, attempt) == []


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "more behind it": lambda data: data + b"{}",
    "twice": lambda data: data + data,
    "not UTF-8": lambda data: b"\xff\xfe" + data,
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "zeros": lambda _data: bytes(1000),
    "deep": lambda _data: b"[" * 100_000,
    "deep objects": lambda _data: b'{"a":' * 100_000,
    "huge": lambda data: data + b" " * (8 * 1024 * 1024),
    "a key twice": lambda data: data.replace(b"{", b'{"payload":"","payload":"",', 1),
    "NaN": lambda data: data.replace(b'"', b'NaN,"', 1),
    "a long number": lambda _data: b"[" + b"9" * 100_000 + b"]",
    "an unfinished text": lambda _data: b'{"payload":"' + b"\\" * 100_001,
    "lone surrogates": lambda _data: b'{"payload":"\\ud800","payloadType":"\\udfff"}',
    "a payload that is no base64": lambda data: _payload(data, "%%%"),
    "a payload of urlsafe and standard base64": lambda data: _payload(data, "-+==" * 4),
    "a payload with blanks": lambda data: _payload(data, "e30 ="),
    "a payload with idle bits": lambda data: _payload(data, "e31="),
    "an empty payload": lambda data: _payload(data, ""),
    "a payload of nulls": lambda data: _payload(data, base64.b64encode(bytes(3000)).decode()),
}


def _payload(data: bytes, text: str) -> bytes:
    document = json.loads(data)
    document.get("dsseEnvelope", document)["payload"] = text
    return json.dumps(document).encode()


@pytest.mark.parametrize("index", range(5), ids=SEALS)
def test_a_damaged_seal_is_refused_in_one_line(sealed: Sealed, index: int) -> None:
    seal = sealed.seals[index]
    taken, unclear = [], []
    for name, damage in DAMAGES.items():
        damaged = replace(seal, content=damage(seal.content))
        try:
            sealed.verified(seals=(*sealed.seals[:index], damaged, *sealed.seals[index + 1 :]))
        except AttestationError as fault:
            if not (fault.message.isprintable() and fault.hint):
                unclear.append(name)
        else:
            taken.append(name)
    assert (taken, unclear) == ([], [])


@pytest.mark.parametrize("index", [1, 3, 4], ids=[SEALS[1], SEALS[3], SEALS[4]])
def test_a_bundle_has_one_signature(sealed: Sealed, index: int) -> None:
    seal = sealed.seals[index]
    document = json.loads(seal.content)
    document["dsseEnvelope"]["signatures"] *= 2
    doubled = replace(seal, content=json.dumps(document).encode())
    with pytest.raises(AttestationError) as caught:
        sealed.verified(seals=(*sealed.seals[:index], doubled, *sealed.seals[index + 1 :]))
    assert "signatures" in str(caught.value)


def test_the_law_changes_every_field(sealed: Sealed, tmp_path: Path) -> None:
    statement = json.loads(read_envelope(sealed.seals[2]).payload)
    changed = {place for place, _ in _mutations(statement, CLAIMS)}
    assert ("predicate", "runDetails", "metadata", "finishedOn") in changed
    assert ("subject", 1, "digest", "sha256") in changed
    assert not [place for place in changed if set(place) & set(CLAIMS)]
    assert tmp_path.exists()
