from __future__ import annotations

import json
import math
import struct
import tracemalloc

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gate.errors import DocumentError
from gate.evidence.columns import MAX_STEP, Memory, Point, Points, StepMemory
from gate.evidence.step_columns import StepDigest, StepDigests, StepTiming, Timings
from gate.text.digests import sha256_hex
from gate.text.document import Document
from gate.text.documents import document_chunks, read_document, write_document
from gate.text.json_text import PACKED, canonical_json, canonical_sha256, reviewable_json

# every bit pattern: NaN of each kind, infinities, both zeros, subnormals
FLOATS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("=d", struct.pack("=Q", bits))[0])
POINT_STEPS, STEPS = st.integers(0, MAX_STEP), st.integers(1, MAX_STEP)
BYTES = st.integers(0, 2**63)
SECONDS = st.floats(0, 1e18)
TEXTS = st.text(max_size=8)


class Held(Document):
    points: Points = Points()
    timings: Timings = Timings()
    memory: Memory = Memory()
    steps: StepDigests = StepDigests()


class Plain(Document):
    """The same as records, as it was before there were columns."""

    points: tuple[Point, ...] = ()
    timings: tuple[StepTiming, ...] = ()
    memory: tuple[StepMemory, ...] = ()
    steps: tuple[StepDigest, ...] = ()


PLAIN = st.builds(
    Plain,
    points=st.lists(st.builds(Point.of, POINT_STEPS, FLOATS), max_size=4).map(tuple),
    timings=st.lists(
        st.builds(
            StepTiming,
            step=STEPS,
            seconds=SECONDS,
            harness_seconds=SECONDS,
            samples=st.none() | st.integers(0, 2**53),
        ),
        max_size=4,
    ).map(tuple),
    memory=st.lists(
        st.builds(StepMemory, step=STEPS, resident_bytes=BYTES, device_bytes=BYTES), max_size=4
    ).map(tuple),
    steps=st.lists(
        st.builds(
            StepDigest,
            step=STEPS,
            parameters=TEXTS,
            fingerprints=st.dictionaries(TEXTS, TEXTS, max_size=2),
        ),
        max_size=4,
    ).map(tuple),
)


def held_of(plain: Plain) -> Held:
    return Held(
        points=Points.of(plain.points),
        timings=Timings.of(plain.timings),
        memory=Memory.of(plain.memory),
        steps=StepDigests.of(plain.steps),
    )


@given(PLAIN)
def test_columns_are_written_as_their_records_and_read_back(plain: Plain) -> None:
    held = held_of(plain)
    data = write_document(plain)
    assert b"".join(document_chunks(held)) == data
    assert reviewable_json(held.model_dump(mode="json")).encode() == data
    assert read_document(Held, data, "x") == held
    assert json.loads(held.model_dump_json()) == json.loads(plain.model_dump_json())


@given(PLAIN)
def test_columns_are_a_sequence_of_their_records(plain: Plain) -> None:
    held = held_of(plain)
    for name in Held.model_fields:
        rows, records = getattr(held, name), getattr(plain, name)
        assert list(map(repr, rows)) == list(map(repr, records))
        assert len(rows) == len(records)
        for some in (slice(1), slice(1, None), slice(None, None, -1), slice(-2, None, 2)):
            assert rows[some] == type(rows).of(records[some])
        assert not records or repr(rows[-1]) == repr(records[-1])
        assert hash(rows) == hash(type(rows).of(records))
        with pytest.raises(IndexError):
            rows[len(records)]


@given(PLAIN)
def test_what_is_packed_is_read_back_in_that_context_alone(plain: Plain) -> None:
    held = held_of(plain)
    data = held.model_dump_json(context=PACKED).encode()
    assert read_document(Held, data, "x", context=PACKED) == held
    with pytest.raises(DocumentError):
        read_document(Held, data, "x")
    if any(map(len, (plain.points, plain.timings, plain.memory, plain.steps))):
        with pytest.raises(DocumentError):
            read_document(Held, write_document(held), "x", context=PACKED)


@given(FLOATS, FLOATS)
def test_points_are_equal_exactly_when_their_texts_are(one: float, other: float) -> None:
    same = one.hex() == other.hex()
    assert (Points([(1, one)]) == Points([(1, other)])) is same


@each_row(
    ("record", "told"),
    [
        ({"step": 1, "decimal": "1.5", "hex": "0x1.0000000000000p+0"}, "is not the number"),
        ({"step": 1, "decimal": "1.50", "hex": "0x1.8000000000000p+0"}, "has to be written 1.5"),
        ({"step": 1, "decimal": "1.5", "hex": "0x1.8p+0"}, "has to be written 1.5"),
        ({"step": 1, "decimal": "-nan", "hex": "-nan"}, "has to be written nan"),
        ({"step": 1, "decimal": "1.0", "hex": "0x1p9999"}, "beyond what a float holds"),
        ({"step": 1, "decimal": "1.0", "hex": "one"}, "hexadecimal"),
        ({"step": -1, "decimal": "nan", "hex": "nan"}, "points[1].step: must be greater"),
        ({"step": 2**53 + 1, "decimal": "nan", "hex": "nan"}, "points[1].step: must be less"),
        ({"step": 10**400, "decimal": "nan", "hex": "nan"}, "points[1].step: must be less"),
        ({"step": 1.0, "decimal": "nan", "hex": "nan"}, "points[1].step: must be a valid integer"),
        ({"step": True, "decimal": "nan", "hex": "nan"}, "points[1].step: must be a valid integer"),
        ({"step": 1, "decimal": "nan", "hex": "nan", "x": 1}, "points[1].x: is not a known key"),
        ({"step": 1, "decimal": "nan"}, "points[1].hex: is required"),
        ("nan", "points[1]: must be an object"),
    ],
)
def test_what_is_no_point_is_refused_with_its_place(record: object, told: str) -> None:
    good = {"step": 0, "decimal": "nan", "hex": "nan"}
    with pytest.raises(DocumentError) as caught:
        read_document(Held, json.dumps({"points": [good, record]}).encode(), "x")
    assert any(told in line for line in caught.value.details)


@each_row(
    ("field", "change", "told"),
    [
        ("timings", {"seconds": -1.0}, "timings[1].seconds: must be greater"),
        ("timings", {"seconds": 1e19}, "timings[1].seconds: must be less"),
        ("timings", {"seconds": "1"}, "timings[1].seconds: must be a valid number"),
        ("timings", {"samples": -1}, "timings[1].samples: must be greater"),
        ("timings", {"samples": 2**53 + 1}, "timings[1].samples: must be less"),
        ("timings", {"step": 0}, "timings[1].step: must be greater"),
        ("memory", {"resident_bytes": 2**63 + 1}, "memory[1].resident_bytes: must be less"),
        ("memory", {"device_bytes": -1}, "memory[1].device_bytes: must be greater"),
        ("memory", {"device_bytes": 1.0}, "memory[1].device_bytes: must be a valid integer"),
        ("steps", {"step": 0}, "steps[1].step: must be greater"),
        ("steps", {"step": True}, "steps[1].step: must be a valid integer"),
        ("steps", {"parameters": 1}, "steps[1].parameters: must be a valid string"),
        ("steps", {"parameters": "a" * 129}, "steps[1].parameters: String should have at most"),
        ("steps", {"fingerprints": {"a": 1}}, "steps[1].fingerprints.a: must be a valid string"),
        ("steps", {"x": 1}, "steps[1].x: is not a known key"),
    ],
)
def test_what_no_record_takes_is_refused_with_its_place(
    field: str, change: dict[str, object], told: str
) -> None:
    goods: dict[str, dict[str, object]] = {
        "timings": {"step": 1, "seconds": 1.0, "harness_seconds": 0.0, "samples": None},
        "memory": {"step": 1, "resident_bytes": 1, "device_bytes": 0},
        "steps": {"step": 1, "parameters": ""},
    }
    good = goods[field]
    with pytest.raises(DocumentError) as caught:
        read_document(Held, json.dumps({field: [good, {**good, **change}]}).encode(), "x")
    assert any(told in line for line in caught.value.details)


def test_what_a_record_takes_in_other_words_is_written_in_its_own() -> None:
    data = b'{"timings": [{"step": 1, "seconds": 1}], "steps": [{"step": 2, "fingerprints": {}}]}'
    held = read_document(Held, data, "x")
    assert held.timings[0] == StepTiming(step=1, seconds=1.0)
    assert held.steps == StepDigests([2])


STEP_1, STEP_2 = "AQAAAAAAAAA=", "AgAAAAAAAAA="


@each_row(
    ("field", "parts"),
    [
        ("points", []),
        ("points", ["A", "A"]),
        ("points", ["AAAA", "AAAA"]),
        ("points", [[1, 0], ""]),
        ("points", [[1, 2], STEP_1]),
        ("points", [[True, 1], STEP_1]),
        ("points", [[1, 1, 1], STEP_1]),
        ("points", [[2**63, 1], STEP_1]),
        ("points", [[1, 2**40], STEP_1]),
        ("steps", [[1, 2**40], "", []]),
        ("memory", [[1, 1], [1, 2**40, "same"], STEP_1]),
        ("memory", [[1, 1], [-1, 1, "same"], STEP_1]),
        ("memory", [[1, 1], [True, 1, "same"], STEP_1]),
        ("memory", [[1, 1], [1, 1, "other"], STEP_1]),
        ("memory", [[1, 1], [1, 2, "same"], STEP_1]),
        ("points", [[1, 1], [1, 1, "same"]]),
        ("steps", [[MAX_STEP, 2], "", []]),
        ("points", [STEP_1, ""]),
        ("points", ["////////////", STEP_1]),
        ("points", [STEP_1, "AAAA\nAAAAAAA="]),
        ("points", [1, 2]),
        ("timings", ["AAAAAAAAAAA=", STEP_1, STEP_1, STEP_1]),
        ("timings", [STEP_1, "AAAAAAAA+H8=", STEP_1, STEP_1]),
        ("memory", [STEP_1, "//////////8=", STEP_1]),
        ("steps", [STEP_1, STEP_1, [{"step": 1, "parameters": "a"}]]),
        ("steps", [STEP_1, "AAAAAAAAAAA=", [{"step": 2, "parameters": "a"}]]),
        ("steps", [STEP_1, "AAAAAAAAAAA=", []]),
        ("steps", [STEP_1, "AAAAAAAAAAA=", [{"step": 1, "parameters": 1}]]),
        ("steps", [STEP_1, "//////////8=", [{"step": 1, "parameters": "a"}]]),
        ("steps", ["AAAAAAAAAAA=", "", []]),
    ],
)
def test_bytes_that_no_columns_have_are_refused(field: str, parts: list[object]) -> None:
    with pytest.raises(DocumentError) as caught:
        read_document(Held, json.dumps({field: parts}).encode(), "x", context=PACKED)
    assert caught.value.details == (f"{field}: are no packed records",)


def test_records_are_asked_for_by_type() -> None:
    with pytest.raises(ValidationError, match="valid tuple"):
        Held(points=[Point.of(1, 1.0)])  # type: ignore[arg-type] # what is refused
    assert Held.model_validate({"points": (Point.of(1, 1.0),)}).points == Points([(1, 1.0)])


def test_numbers_that_no_point_has_are_refused() -> None:
    for step in (-1, MAX_STEP + 1):
        with pytest.raises(ValueError, match="a step is below 0 or above"):
            Points([(step, 1.0)])


def test_a_long_series_takes_eight_bytes_a_number_and_none_for_steps_in_a_row() -> None:
    def held_bytes(rows: list[tuple[int, float]]) -> int:
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        held = Points(rows)
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert list(held.pairs()) == rows
        return taken

    rows = [(step, math.sqrt(step)) for step in range(1000)]
    assert held_bytes(rows) < 8 * 1000 + 1000
    assert held_bytes([(2 * step, value) for step, value in rows]) < 16 * 1000 + 1000


def test_a_number_that_never_moves_is_held_once() -> None:
    rows = Memory([(step, 7, 0) for step in range(1, 5001)])
    assert rows.packed() == [[1, 5000], [7, 5000, "same"], [0, 5000, "same"]]
    assert Memory.unpacked(rows.packed()) == rows
    assert list(rows.resident_bytes) == [7] * 5000
    assert (rows.resident_bytes[-1], len(rows.resident_bytes[2:])) == (7, 4998)
    assert rows[4999] == StepMemory(step=5000, resident_bytes=7, device_bytes=0)
    assert rows[:2] == Memory([(1, 7, 0), (2, 7, 0)])


@given(PLAIN)
def test_the_canonical_digest_is_that_of_the_records(plain: Plain) -> None:
    told = plain.model_dump(mode="json")
    held = held_of(plain).model_dump()
    assert canonical_sha256([held, "é", {}]) == sha256_hex(canonical_json([told, "é", {}]))
