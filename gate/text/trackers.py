"""The trackers that a verdict may go to, each by every name that it has outside its own module.

A further one is a record here, its settings in `gate/settings/delivery_sections.py` and in the
table of `gate/settings/reach.py`, its client in `gate/publishing/` and its line in
`gate/pipelines/entry.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackerNames:
    """What a tracker is called: `key` in the section for publishing, `title` in reports.

    `login` are the variables that it logs in with, which no training may be given; every variable
    that begins with `prefix` is withheld from other programs.
    """

    key: str
    title: str
    prefix: str
    login: tuple[str, ...]


MLFLOW: Final = TrackerNames(
    key="mlflow",
    title="MLflow",
    prefix="MLFLOW_TRACKING_",
    login=("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
)
TRACKERS: Final = (MLFLOW,)
