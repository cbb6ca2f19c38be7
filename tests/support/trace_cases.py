"""Small operator traces for tests, which change one thing in them."""

from __future__ import annotations

import hashlib

from gate.evidence.trace import Phase, RankTrace, TracedCall, TracedValue


def value(content: str, *made_by: int, name: str = "0", **fields: object) -> TracedValue:
    """Return a tensor with this content, made by these calls; empty content was not read."""
    digest = f"grid64:{hashlib.sha256(content.encode()).hexdigest()}" if content else ""
    told = {"form": "float32 (4,)", "device": "cpu", **fields}
    return TracedValue(name=name, digest=digest, made_by=made_by, **told)  # type: ignore[arg-type] # by name


def call(
    number: int,
    operator: str = "aten::mul",
    inputs: tuple[TracedValue, ...] = (),
    outputs: tuple[TracedValue, ...] = (),
    **fields: object,
) -> TracedCall:
    """Return a call in `train.py`, on the line with the call's own number."""
    told: dict[str, object] = {
        "step": 1,
        "module": "",
        "phase": Phase.FORWARD,
        "file": "train.py",
        "line": number + 1,
        "forward_file": "",
        "forward_line": 0,
        "thread": 0,
        "random": False,
        "compiled": False,
        "arguments": "",
        "whole": True,
    }
    return TracedCall(
        number=number,
        operator=operator,
        inputs=inputs,
        outputs=outputs,
        **(told | fields),  # type: ignore[arg-type] # by name
    )


def chain(contents: str, **first: object) -> RankTrace:
    """Return a trace in which each call makes its letter from the previous call's."""
    calls = []
    for number, content in enumerate(contents):
        inputs = (value(contents[number - 1], number - 1),) if number else ()
        fields = first if not number else {}
        calls.append(call(number, "aten::mul", inputs, (value(content),), **fields))
    return trace(*calls)


def trace(*calls: TracedCall, rank: int = 0, ended: str = "done") -> RankTrace:
    """Return a trace of one rank."""
    return RankTrace(rank=rank, calls=calls, ended=ended, unread=0)  # type: ignore[arg-type] # by name
