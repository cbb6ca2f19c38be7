"""Lets the tools of others verify seals and writes docs/verification.md: `make interop`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from interop_keyless import keyless_scenes, keyless_verifiers
from interop_scenes import KEYS, Fault, Scene, scenes
from interop_tools import Tools, installed
from interop_verifiers import Verifier, verifiers

from gate.package.seal_records import KeyAlgorithm

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verification.md"
BEGIN, END = "<!-- made by make interop -->", "<!-- end of what make interop made -->"
ACCEPTED, REFUSED, NOT_SEEN = "accepted", "refused", "-"
Made = Mapping[KeyAlgorithm | None, Mapping[Fault, Scene]]


def row(verifier: Verifier, algorithm: KeyAlgorithm | None, made: Made) -> tuple[str, ...]:
    """What the tool says of each scene, in bold where that is wrong."""
    cells = []
    for fault in Fault:
        if fault not in verifier.looks_at:
            cells.append(NOT_SEEN)
            continue
        told = ACCEPTED if verifier.accepts(made[algorithm][fault]) else REFUSED
        wanted = ACCEPTED if fault is Fault.NONE else REFUSED
        cells.append(told if told == wanted else f"**{told}**")
    return verifier.tool, verifier.seal, KEYS[algorithm], *cells


def table(rows: list[tuple[str, ...]], tools: Tools) -> str:
    """The generated part of the page."""
    head = ("tool", "seal", "key", *(fault.value for fault in Fault))
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *joined(rows))]
    about = f"Made {time.strftime('%Y-%m-%d')} with {', '.join(tools.versions)}."
    missing = [f"Not tried, as it cannot be had here: {each}." for each in tools.missing]
    return "\n".join((about, *missing, "", *lines))


def joined(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows of one tool with the same answers as one row: first their keys, then their seals."""
    keys: dict[tuple[str, ...], list[str]] = {}
    for tool, seal, key, *answers in rows:
        keys.setdefault((tool, seal, *answers), []).append(key)
    seals: dict[tuple[str, ...], list[str]] = {}
    for (tool, seal, *answers), names in keys.items():
        seals.setdefault((tool, ", ".join(names), *answers), []).append(seal)
    return [
        (tool, ", ".join(names), key, *answers) for (tool, key, *answers), names in seals.items()
    ]


def with_table(page: str, text: str) -> str:
    """The page with another generated part."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"error: {PAGE} has no place for the table\nhint: Put the two marks back.")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> None:
    """Install, try, write the page; exit code 1 where a tool says another thing than it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="kept between calls")
    tools = installed(parser.parse_args().tools.resolve())
    for each in tools.missing:
        print(f"not tried: {each}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        made: dict[KeyAlgorithm | None, dict[Fault, Scene]] = {
            each: scenes(Path(folder) / each.value, each) for each in KeyAlgorithm
        }
        made[None] = keyless_scenes(Path(folder) / "keyless")
        for verifier in (*verifiers(tools), *keyless_verifiers(tools)):
            for algorithm in verifier.keys:
                rows.append(row(verifier, algorithm, made))
                print(" | ".join(rows[-1]), flush=True)
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), table(rows, tools)), encoding="utf-8")
    wrong = [" ".join(cells) for cells in rows if any("**" in cell for cell in cells)]
    if wrong:
        sys.exit("error: not as it should be: " + "; ".join(wrong))
    print(f"{len(rows)} rows, all as they should be")


if __name__ == "__main__":
    main()
