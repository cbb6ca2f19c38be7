"""Run a tier of the tests, and report at its end how long it took and what its budget is.

The budget is informational: a tier that takes longer does not fail, and a person decides what to
do. Budgets are for two quiet cores; tests/README.md lists them.
"""

from __future__ import annotations

import subprocess
import sys
import time

BUDGET_MINUTES = {"check": 4, "test": 10, "ci": 20}


def spoken(seconds: float) -> str:
    """Return a duration as minutes and seconds, such as `3 min 20 s`."""
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def report(tier: str, seconds: float) -> str:
    """Return a sentence with the time that a tier took and its budget."""
    budget = BUDGET_MINUTES[tier]
    over = " (over budget)" if seconds > budget * 60 else ""
    return f"{tier}: took {spoken(seconds)}{over}; its budget is {budget} min on two quiet cores"


def main(words: list[str]) -> int:
    """Run the command that follows the tier's name, report, and return its exit code."""
    tier, *command = words
    begun = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    sys.stdout.write(f"{report(tier, time.monotonic() - begun)}\n")
    # as a shell does it: a command killed by signal n ends with 128 + n
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
