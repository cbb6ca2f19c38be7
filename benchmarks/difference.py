"""What the difference of two saved states costs, beside loading both. `make bench-diff`.

Every number is the fastest of several rounds in which all ways take turns, each as a whole process
on one machine. It prints a Markdown page; `--out FILE` writes it as well.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from digest_workloads import MAKE_MOVED, MAKE_ZIP, NAIVE_DIFFERENCE
from measured_processes import about, fastest, load, program, run

ROUNDS = 5
LAYERS = 32
SMALL_TENSORS = 20_000
SMALL_ELEMENTS = 1024
GOAL = 10


def pair(folder: Path, count: int, elements: int, *, moved: str) -> tuple[Path, Path]:
    """Two files of the same tensors, of which the first or all have moved."""
    left, right = folder / "left.pt", folder / "right.pt"
    run(program(MAKE_ZIP, left, str(count), str(elements)))
    run(program(MAKE_MOVED, left, right, moved))
    return left, right


def rows(name: str, paths: tuple[Path, Path], rounds: int) -> Iterator[str]:
    """One comparison, both ways."""
    ours_command = (sys.executable, "-m", "gate", "diff", *map(str, paths), "--json")
    found = fastest({"ours": ours_command, "naive": program(NAIVE_DIFFERENCE, *paths)}, rounds)
    ours, naive = (found[way].process_seconds for way in ("ours", "naive"))
    ratio = naive / ours
    verdict = "reached" if ratio >= GOAL else "**not reached**"
    yield f"| {name} | {ours:.2f} | {naive:.2f} | {ratio:.1f} | {verdict} |"


def page(folder: Path, rounds: int, scale: int) -> Iterator[str]:
    """The whole page, line by line as it is measured."""
    yield "# Difference of two saved states, on a CPU\n"
    yield (
        f"Written by `make bench-diff`; the fastest of {rounds} rounds in which both take turns, "
        "each a whole process."
    )
    yield f"Files are in the page cache.\n\n{about(None)}\n"
    yield (
        "Naive: `torch.load` of both, subtract each pair, the largest difference and the count of "
        f"differing elements. Goal: {GOAL} times as fast. Ours finds all figures of "
        "docs/diff.md.\n"
    )
    yield "| two files | `repro-gate diff` s | naive s | ratio | goal |"
    yield "|---|---|---|---|---|"
    large, small = (max(1, LAYERS // scale), 0), (SMALL_TENSORS // scale, SMALL_ELEMENTS)
    for name, (count, elements), moved in (
        ("large, one tensor differs", large, "one"),
        ("large, all tensors differ", large, "all"),
        (f"{SMALL_TENSORS // scale:,} tensors of 4 KiB, one differs", small, "one"),
    ):
        paths = pair(folder, count, elements, moved=moved)
        size_bytes = paths[0].stat().st_size
        yield from rows(f"{name} ({size_bytes / 1e9:.2f} GB each)", paths, rounds)
    yield f"\nLoad of the machine at the end (1, 5, 15 minutes): {load()}."


def main() -> None:
    """Measure, print, and write the page where that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", type=int, default=1, help="files so many times smaller")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        lines = []
        for line in page(Path(name), options.rounds, options.scale):
            print(line, flush=True)
            lines.append(line)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
