"""A recorded training, an interrupted run, and a resumed run that lacks a state of the test's."""

from __future__ import annotations

from dataclasses import dataclass, field

from evidence_cases import evidence_of, manifest_of, record_of

from gate.evidence.columns import Points
from gate.evidence.observations import Boundary, ResumeAttempt
from gate.evidence.run_evidence import MetricSeries, MetricSource, RunEvidence
from gate.evidence.step_columns import StepDigest, StepDigests
from gate.evidence.step_work import StepGiven
from gate.text.digests import sha256_hex

AT, STEPS = 5, 12
RATE = "state/optimizer/0/group/0/lr"
GENERATORS = ("random.python", "random.numpy", "random.torch")


def digest(*words: object) -> str:
    return f"sha256:{sha256_hex(repr(words).encode())}"


def short(*words: object) -> str:
    return sha256_hex(repr(words).encode())[:32]


def rate(step: int) -> str:
    return repr(0.1 / step)


def series(first: int, last: int, *, since: int = 0, by: float = 0.0) -> MetricSeries:
    """Return the loss of these steps, numbered from 1; from step `since` it differs by `by`.

    `since` counts the steps of the whole training; 0 means that nothing differs.
    """
    points = [
        (step - first + 1, 1 / step + (by if since and step >= since else 0.0))
        for step in range(first, last + 1)
    ]
    return MetricSeries(name="loss", source=MetricSource.HARNESS, points=Points(points))


def steps(first: int, last: int, *, since: int = 0) -> list[StepDigest]:
    """Return the fingerprints of these steps, numbered from 1; parameters differ from `since`."""
    found = []
    for step in range(first, last + 1):
        moved = bool(since) and step >= since
        fingerprints = {name: digest(name, step) for name in ("input", *GENERATORS)}
        if step == first:
            fingerprints["initial"] = digest("initial", first - 1)
        found.append(
            StepDigest(
                step=step - first + 1,
                parameters=digest("parameters", step, moved),
                fingerprints=fingerprints,
            )
        )
    return found


def whole() -> RunEvidence:
    """Return the uninterrupted run."""
    given = tuple(StepGiven(step=step, settings={RATE: rate(step)}) for step in range(1, STEPS + 1))
    return evidence_of().model_copy(
        update={
            "metrics": (series(1, STEPS),),
            "steps": StepDigests.of(steps(1, STEPS)),
            "given": given,
            "checkpoint": manifest_of(weight=b"12345678", average=b"12345678"),
        }
    )


def boundary(step: int, rank: int = 0, **changes: object) -> Boundary:
    """Return the state of a rank after a step, before the next update."""
    names = ("model/0/weight", "optimizer/0/state/0/exp_avg", "optimizer/0/state/0/exp_avg_sq")
    digests = {name: short(name, step) for name in names}
    about: dict[str, object] = {
        "rank": rank,
        "steps": step,
        "optimizers": 1,
        "before_update": True,
        "parameters": digest("parameters", step, False),
        "random": {name: digest(name, step, rank) for name in GENERATORS},
        "digests": digests | {"scaler/0/scale": short("scale", step)},
        "numbers": {"scaler/0/scale": (1024.0).hex()},
    }
    return Boundary.model_validate(about | changes)


def interrupted(step: int, ranks: int = 1) -> RunEvidence:
    """Return the run interrupted after a step."""
    return whole().model_copy(
        update={
            "run": record_of("interrupted-1"),
            "metrics": (series(1, step),),
            "steps": StepDigests.of(steps(1, step)),
            "boundaries": tuple(boundary(step, rank) for rank in range(ranks)),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Lack:
    """The state that a resumed run lacks, as changes of its first step, boundary and end."""

    fingerprints: dict[str, str] = field(default_factory=dict)
    boundary: dict[str, object] = field(default_factory=dict)
    rate: str = ""
    average: bytes = b"12345678"
    differs: bool = True


def resumed(step: int, lack: Lack | None = None, ranks: int = 1) -> RunEvidence:
    """Return a run that resumes after a step; without a lack its result equals the whole run's."""
    since = step + 1 if lack is not None and lack.differs else 0
    told = steps(step + 1, STEPS, since=since)
    lack = lack or Lack(differs=False)
    first = told[0].model_copy(update={"fingerprints": told[0].fingerprints | lack.fingerprints})
    rates = [lack.rate or rate(step + 1), *(rate(one) for one in range(step + 2, STEPS + 1))]
    given = tuple(
        StepGiven(step=place, settings={RATE: word}) for place, word in enumerate(rates, 1)
    )
    borders = [boundary(step, rank) for rank in range(ranks)]
    held = {"steps": 0} | lack.boundary
    borders[-1] = boundary(step, ranks - 1, **held)
    return whole().model_copy(
        update={
            "run": record_of("resumed-1"),
            "metrics": (series(step + 1, STEPS, since=since, by=0.5),),
            "steps": StepDigests.of([first, *told[1:]]),
            "given": given,
            "checkpoint": manifest_of(weight=b"12345678", average=lack.average),
            "boundaries": tuple(borders),
        }
    )


def attempt(step: int) -> ResumeAttempt:
    """Return an attempt to resume from a checkpoint with one file."""
    return ResumeAttempt(
        checkpoint="out/last.pt",
        at_step=step,
        step=step,
        files=1,
        size_bytes=8192,
        sha256=sha256_hex(b"last.pt"),
    )
