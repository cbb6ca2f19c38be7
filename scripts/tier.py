"""Run a tier of the tests and say at its end what it took beside its budget.

The budget is a report, never a failure: a tier that takes longer passes all the same, and the
person who sees the two figures decides. Budgets are for two quiet cores; tests/README.md has them.
"""

from __future__ import annotations

import subprocess
import sys
import time

BUDGET_MINUTES = {"check": 4, "test": 10, "ci": 20}


def spoken(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def report(tier: str, seconds: float) -> str:
    """What it took beside what it may take."""
    budget = BUDGET_MINUTES[tier]
    over = " (over budget)" if seconds > budget * 60 else ""
    return f"{tier}: took {spoken(seconds)}{over}; its budget is {budget} min on two quiet cores"


def main(words: list[str]) -> int:
    """Run the command behind the name of the tier; its exit code."""
    tier, *command = words
    begun = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    sys.stdout.write(f"{report(tier, time.monotonic() - begun)}\n")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
