"""Makes every attempt that this machine allows and writes docs/security.md: `make security`."""

from __future__ import annotations

import argparse
import platform
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from abilities import promised, why_not
from arena import ROOT
from attempt import MODES, Attempt, Threat
from table import ATTEMPTS
from trials import try_one, try_together

from gate.isolation.modes import IsolationMode

PAGE = ROOT / "docs" / "security.md"
TEMPLATE = Path(__file__).with_name("page.md")
HELD, FAILED, NOT_PROMISED, NOT_TRIED = "held", "**FAILED**", "-", "not tried"
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| .* \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)
ABOUT = re.compile(r"^Last made: (.*)$", re.MULTILINE)
Results = Mapping[tuple[str, IsolationMode], str]


def made(shown: str) -> dict[tuple[str, IsolationMode], str]:
    """Make every attempt in each isolation that the machine allows; `shown` chooses by name."""
    results: dict[tuple[str, IsolationMode], str] = {}
    for mode in MODES:
        reason = why_not(mode)
        if reason:
            print(f"{mode.value}: not tried: {reason}", flush=True)
            continue
        together = {} if mode is IsolationMode.NONE else try_together(mode)
        for attempt in ATTEMPTS:
            if not promised(mode, attempt) or not re.search(shown, attempt.name):
                continue
            begun = time.monotonic()
            faults = together[attempt.name] if attempt.together else try_one(mode, attempt)
            results[attempt.name, mode] = FAILED if faults else HELD
            seconds = f"{time.monotonic() - begun:.1f} s"
            print("\n  ".join((f"{mode.value} {attempt.name}: {seconds}", *faults)), flush=True)
    return results


def about() -> str:
    """The machine, in a line."""
    return (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}."
    )


def render(results: Results, machine: str) -> str:
    """The page; a pair that is not among the results was not tried."""
    facts = {
        "machine": machine,
        "count": str(len(ATTEMPTS)),
        "rows": str(len(Threat)),
        "tables": "\n\n".join(_table(threat, results) for threat in Threat),
    }
    text = TEMPLATE.read_text("utf-8")
    for name, value in facts.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def _table(threat: Threat, results: Results) -> str:
    rows = [_row(attempt, results) for attempt in ATTEMPTS if attempt.threat is threat]
    modes = " | ".join(f"`{mode.value}`" for mode in MODES)
    head = f"| attempt | what it tries | what stops it | {modes} |"
    return "\n".join((f"## {threat.value}", "", head, "|---|---|---|---|---|---|", *rows))


def _row(attempt: Attempt, results: Results) -> str:
    cells = (
        results.get((attempt.name, mode), NOT_TRIED) if mode in attempt.modes else NOT_PROMISED
        for mode in MODES
    )
    outcome = "exit code 2" if attempt.brought else f"`{attempt.outcome.value}`"
    ends = "" if attempt.exit_code == 0 else f" ({outcome})"
    words = (f"`{attempt.name}`", attempt.tries, attempt.stopped_by + ends, *cells)
    return f"| {' | '.join(words)} |"


def results_on(page: str) -> dict[tuple[str, IsolationMode], str]:
    """The results that a page tells, as `render` takes them."""
    told = {
        (row[1], mode): row[place]
        for row in ROW.finditer(page)
        for place, mode in enumerate(MODES, start=2)
    }
    return {key: word for key, word in told.items() if word in {HELD, FAILED}}


def main() -> None:
    """Try, then write the page; with `--only PATTERN` try those and write nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="A pattern of names; the page stays.")
    only: str = parser.parse_args().only
    results = made(only)
    failed = [f"{name} ({mode.value})" for (name, mode), word in results.items() if word != HELD]
    if not only:
        PAGE.write_text(render(results, about()), encoding="utf-8")
    if failed:
        sys.exit(f"error: not held: {', '.join(failed)}\nhint: The faults stand above, one a line.")
    print(f"{len(results)} results, all held")


if __name__ == "__main__":
    main()
