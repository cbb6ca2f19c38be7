"""What a program that the gate starts for itself is handed of the gate's own variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# the step's inputs, what the runner and the gate keep secret, and the logins of a tracker and of
# package indexes
WITHHELD: Final = (
    *("INPUT_", "ACTIONS_", "REPRO_GATE_", "MLFLOW_TRACKING_", "PYTHON"),
    *("PIP_", "UV_", "POETRY_", "PDM_", "TWINE_"),
)


def without_secrets(variables: Mapping[str, str], *further: str) -> dict[str, str]:
    """The variables but those with such a beginning, or with one of `further`.

    A program's own credentials stay: a key service or a remote of data is reached with them.
    """
    withheld = (*WITHHELD, *further)
    return {name: value for name, value in variables.items() if not name.startswith(withheld)}
