"""Makes every attempt that this machine allows and writes docs/security.md: `make security`."""

from __future__ import annotations

import argparse
import platform
import re
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from abilities import promised, why_not
from arena import ROOT
from attempt import MODES, Attempt, Threat
from table import ATTEMPTS
from trials import try_one, try_together

from gate.isolation.modes import IsolationMode

PAGE = ROOT / "docs" / "security.md"
TEMPLATE = Path(__file__).with_name("page.md")
HELD, FAILED, NOT_TRIED = "held", "**FAILED**", "not tried"
ROW = re.compile(r"^\| .* \| (`.*) \| ([^|]*) \|$", re.MULTILINE)
NAME = re.compile(r"`([a-z0-9-]+)`: ")
NEXT = "<br>"
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
    """A row for each thing that stops attempts, in the order of the first of them."""
    rows: dict[tuple[str, str], list[str]] = {}
    for attempt in ATTEMPTS:
        if attempt.threat is threat:
            row = rows.setdefault((_stopped_by(attempt), _held_under(attempt, results)), [])
            row.append(f"`{attempt.name}`: {attempt.tries}")
    lines = [f"| {what} | {NEXT.join(tried)} | {held} |" for (what, held), tried in rows.items()]
    head = "| what stops it | what was tried | held under |"
    return "\n".join((f"## {threat.value}", "", head, "|---|---|---|", *lines))


def _stopped_by(attempt: Attempt) -> str:
    outcome = "exit code 2" if attempt.brought else f"`{attempt.outcome.value}`"
    return attempt.stopped_by + ("" if attempt.exit_code == 0 else f" ({outcome})")


def _held_under(attempt: Attempt, results: Results) -> str:
    """The isolations under which it held, and then by name what did not."""
    words = {mode: results.get((attempt.name, mode), NOT_TRIED) for mode in attempt.modes}
    cells = [
        ("" if word == HELD else f"{word}: ") + _listed(m for m in MODES if words.get(m) == word)
        for word in (HELD, FAILED, NOT_TRIED)
        if word in words.values()
    ]
    return "; ".join(cells)


def _listed(modes: Iterable[IsolationMode]) -> str:
    return ", ".join(f"`{mode.value}`" for mode in modes)


def results_on(page: str) -> dict[tuple[str, IsolationMode], str]:
    """The results that a page reports, as `render` takes them."""
    found: dict[tuple[str, IsolationMode], str] = {}
    for tried, cell in ROW.findall(page):
        names = [match[1] for each in tried.split(NEXT) if (match := NAME.match(each))]
        for part in cell.split("; "):
            word = next((word for word in (FAILED, NOT_TRIED) if part.startswith(word)), HELD)
            modes = [mode for mode in MODES if f"`{mode.value}`" in part and word != NOT_TRIED]
            found |= {(name, mode): word for name in names for mode in modes}
    return found


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
        sys.exit(f"error: not held: {', '.join(failed)}\nhint: The faults are above, one a line.")
    print(f"{len(results)} results, all held")


if __name__ == "__main__":
    main()
