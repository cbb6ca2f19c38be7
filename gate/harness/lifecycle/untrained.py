"""What a process tells that ends without an optimizer step: whether it had torch, and what else.

Imported at the exit of every Python process that has no torch, so nothing heavy is imported here.
"""

from __future__ import annotations

import os
import sys

from ..this_process import current_rank, process_id

# with trainings or fits of their own, which no torch optimizer sees
TRAINERS = (
    *("jax", "keras", "lightgbm", "scipy.optimize", "sklearn", "tensorflow", "xgboost"),
    "numpy",
)
# a script may start thousands of small programs, and the first ones say enough
MAX_UNTRAINED_FILES = 200


def trainers() -> list[str]:
    """Which libraries that can train without torch's optimizers are imported."""
    return [name for name in TRAINERS if name in sys.modules]


def tell_without_torch(folder: str) -> None:
    """Write that this process never imported torch; `OSError` when that is impossible."""
    if len(os.listdir(folder)) >= MAX_UNTRAINED_FILES:  # noqa: PTH208 - pathlib is slow to import
        return
    rank, pid = current_rank(), process_id()
    # by hand, of digits and of names above: json is slow to import
    names = ", ".join(f'"{name}"' for name in trainers())
    text = (
        f'{{"pid": {pid}, "rank": {rank}, "torch": false, "backwards": 0, "stopped": false, '
        f'"imported": [{names}]}}'
    )
    with open(f"{folder}/untrained-r{rank}-{pid}.json", "w", encoding="ascii") as file:  # noqa: PTH123 - as above
        file.write(text)
