"""Shared by the simulated rates: their options, and printing the page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path


def print_page(
    description: str | None, histories: int, page: Callable[[int], Iterator[str]]
) -> None:
    """Print each line of the page as it is simulated, and write all to `--out` if that is given.

    `histories` is the default number of simulated histories; `page` gets the number to simulate.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--histories", type=int, default=histories)
    options = parser.parse_args()
    lines = []
    for line in page(options.histories):
        print(line, flush=True)
        lines.append(line)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
