"""The trackers to which a verdict can be sent, with the names that other modules need.

To add one: a record here; its settings in `gate/settings/delivery_sections.py` and in the table of
`gate/settings/reach.py`; its client in `gate/publishing/`; its line in
`gate/pipelines/call_setup.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackerNames:
    """The names of a tracker: `key` in the publish section, `title` in reports.

    `login` are the variables of its login, which no training may get. Every variable that begins
    with `prefix` is withheld from other programs.
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
