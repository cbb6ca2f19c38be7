"""Collects single numbers into metric series, refusing what cannot be a series."""

from __future__ import annotations

from gate.errors import EvidenceError
from gate.evidence.point import MAX_STEP
from gate.evidence.points import Points
from gate.evidence.run_evidence import FloatType, MetricSeries, MetricSource
from gate.text.untrusted_text import short_text

MAX_NAME = 200
MAX_SERIES = 1000
MAX_POINTS = 500_000


class SeriesCollector:
    """Takes points in the order in which a source gives them.

    NaN and infinity stay what they are: it is the verdict that refuses them.
    """

    def __init__(self, source: MetricSource, shown: str) -> None:
        self._source = source
        self._shown = shown
        self._dtypes: dict[str, FloatType] = {}
        self._points: dict[str, list[tuple[int, float]]] = {}
        self._count = 0

    def add(
        self, name: str, step: int, value: float, *, dtype: FloatType = "float64", where: str = ""
    ) -> None:
        """Take one number; `where` is the place for an error, for example `line 3`.

        Raises `EvidenceError` for a name that is no plain text, a step that is there already or
        goes back, another dtype than before, or too many numbers.
        """
        place = f"{self._shown}: {where}: " if where else f"{self._shown}: "
        self._check_name(name, place)
        points = self._points.setdefault(name, [])
        self._check_step(name, step, points, place)
        known = self._dtypes.setdefault(name, dtype)
        if known != dtype:
            raise EvidenceError(
                f"{place}metric {short_text(name)} is {known}, but {dtype} at step {step}",
                hint="Log each metric in one type; give the other one a different name.",
            )
        self._count += 1
        if len(self._points) > MAX_SERIES:
            raise EvidenceError(
                f"{place}more than {MAX_SERIES:,} metrics", hint="Log fewer metrics."
            )
        if self._count > MAX_POINTS:
            raise EvidenceError(
                f"{place}more than {MAX_POINTS:,} numbers in one run",
                hint="Log fewer metrics, log them at fewer steps, or lower train.max_steps.",
            )
        points.append((step, value))

    def _check_name(self, name: str, place: str) -> None:
        if len(name) > MAX_NAME or not name.isprintable():
            raise EvidenceError(
                f"{place}metric name {short_text(name)} is longer than {MAX_NAME} characters or "
                "not printable",
                hint="Give metrics short plain names.",
            )

    def _check_step(
        self, name: str, step: int, points: list[tuple[int, float]], place: str
    ) -> None:
        if not 0 <= step <= MAX_STEP:
            raise EvidenceError(
                f"{place}metric {short_text(name)} has a step below 0 or above 2**53",
                hint="Count steps from 0 or 1.",
            )
        # in order and once each: points of two runs are paired by their step
        before = points[-1][0] if points else -1
        if step <= before:
            how = "twice" if step == before else f"after step {before}"
            raise EvidenceError(
                f"{place}metric {short_text(name)} is given for step {step} {how}",
                hint="Log each metric once for each step, in order; use a different name for "
                "each phase, for example train_loss and eval_loss.",
            )

    def series(self) -> tuple[MetricSeries, ...]:
        """All series so far, sorted by name."""
        return tuple(
            MetricSeries(
                name=name, source=self._source, dtype=self._dtypes[name], points=Points(points)
            )
            for name, points in sorted(self._points.items())
        )
