"""What simulated rates have in common: their options, and the page that holds them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path


def print_page(
    description: str | None, histories: int, page: Callable[[int], Iterator[str]]
) -> None:
    """Print each line as it comes, and write all to `--out` where that is given."""
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
