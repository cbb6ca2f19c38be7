"""What was checked before a result is judged."""

from __future__ import annotations

from gate.text.records_document import Document


class NotFinite(Document):
    """A number that is NaN or infinite: a metric at a step, or elements of a saved tensor.

    `run` is the label of the run; `step` is None for a tensor, whose `value` says how many.
    `lasting`: so is every later number of the metric. `infinite`: none of them is NaN. `others` are
    the names of more such tensors.
    """

    run: str
    name: str
    step: int | None
    value: str
    lasting: bool = False
    infinite: bool = False
    others: tuple[str, ...] = ()


class SelfTestProbe(Document):
    """A planted fault and whether the comparators caught it."""

    name: str
    caught: bool


class ThresholdResult(Document):
    """A threshold of the policy and the metric's last value; `value` is empty where it has none."""

    metric: str
    least: float | None
    most: float | None
    step: int | None
    value: str
    met: bool
