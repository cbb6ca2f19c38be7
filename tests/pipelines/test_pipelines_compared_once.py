"""Each comparison is made once in a gate call, however many questions rest on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import FrameType

import pytest
from gate_bench import Bench
from played_training import Project

from gate.comparison.compare import compare_results
from gate.verdict.verdict import Outcome

# default runs are compared too
pytestmark = pytest.mark.usefixtures("priced")

Compared = tuple[object, object, object, object]
QUARANTINE = """\
baseline:
  quarantine: [{reason: a flaky node, since: "SINCE", until: "UNTIL"}]
"""


@contextmanager
def comparisons() -> Iterator[list[Compared]]:
    """The arguments of each call of `compare_results`, as the interpreter sees them."""
    made: list[Compared] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is compare_results.__code__:
            seen = frame.f_locals
            made.append((seen["names"], seen["settings"], seen["expected"], seen["observed"]))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield made
    finally:
        sys.setprofile(before)


def again(made: list[Compared]) -> list[object]:
    """The names of those that were made before, of equal results under equal names."""
    return [one[0] for place, one in enumerate(made) if one in made[:place]]


def equal(bench: Bench, _: Project) -> str:
    return bench.record()


def drift(bench: Bench, project: Project) -> str:
    base = bench.record()
    project.play(losses=["2.5", "2.25", "2.0"])
    return base


def moved(bench: Bench, project: Project) -> str:
    base = bench.record()
    project.play(losses=["2.5", "2.25", "2.0"], environment={"torch": "2.14.0"})
    return base


def quarantine(bench: Bench, project: Project) -> str:
    bench.record()
    today = datetime.now(UTC).date()
    rule = QUARANTINE.replace("SINCE", str(today)).replace("UNTIL", str(today + timedelta(2)))
    base = project.settings(rule)
    project.play(losses=["2.5", "2.25", "2.0"])
    return base


def no_baseline(_: Bench, project: Project) -> str:
    return project.commit()


def unequal(_: Bench, project: Project) -> str:
    base = project.commit()
    project.play(random=True)
    return base


@pytest.mark.parametrize(
    ("scene", "outcome"),
    [
        (equal, Outcome.REPRODUCED),
        (drift, Outcome.CODE_DRIFT),
        (moved, Outcome.CODE_DRIFT),
        (quarantine, Outcome.CODE_DRIFT),
        (no_baseline, Outcome.NO_BASELINE),
        (unequal, Outcome.NONDETERMINISTIC),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_no_two_results_are_compared_twice(
    bench: Bench, project: Project, scene: Callable[[Bench, Project], str], outcome: Outcome
) -> None:
    base = scene(bench, project)
    with comparisons() as made:
        verdict = bench.gate(base=base).verdict
    assert verdict.outcome is outcome
    # the runs with each other, at least
    assert ("strict-1", "strict-2") in {one[0] for one in made}
    assert again(made) == []
