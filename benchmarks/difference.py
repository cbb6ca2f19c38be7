"""Measure the difference of two checkpoints beside loading both. `make bench-diff`.

Every number is the fastest of several rounds. In each round all ways take turns, each as a whole
process on one machine. The program prints a Markdown page; `--out FILE` also writes it to a file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from digest_workloads import COMPARED, MAKE_MOVED, MAKE_ZIP, NAIVE_DIFFERENCE, SAME_FIGURES
from measured_processes import about, fastest, load, program, run, write_page

ROUNDS = 5
LAYERS = 32
SMALL_TENSORS = 20_000
SMALL_ELEMENTS = 1024
GOAL = 10
OURS = "`repro-gate diff`"
LARGEST = "large, the largest tensor differs"
SUBTRACTS, SAME = "loads and subtracts", "takes the same figures with torch"
LIMIT = "compares all bytes and does nothing else"


def pair(folder: Path, count: int, elements: int, *, moved: str) -> tuple[Path, Path]:
    """Write two files with the same tensors, except those that `moved` names; return both paths."""
    left, right = folder / "left.pt", folder / "right.pt"
    run(program(MAKE_ZIP, left, str(count), str(elements)))
    run(program(MAKE_MOVED, left, right, moved))
    return left, right


def rows(name: str, paths: tuple[Path, Path], rounds: int, goal: str) -> Iterator[str]:
    """Measure one comparison in all ways; `goal` names the way that ours must beat by `GOAL`."""
    arms = {
        OURS: (sys.executable, "-m", "gate", "diff", *map(str, paths), "--json"),
        SUBTRACTS: program(NAIVE_DIFFERENCE, *paths),
        LIMIT: program(COMPARED, *paths),
    }
    if goal == SAME:
        arms[SAME] = program(SAME_FIGURES, *paths)
    found = fastest(arms, rounds)
    ours = found[OURS].process_seconds
    for way, taken in found.items():
        ratio = taken.process_seconds / ours
        reached = "reached" if ratio >= GOAL else "**not reached**"
        verdict = f"{GOAL}, {reached}" if way == goal else ""
        yield f"| {name} | {way} | {taken.process_seconds:.2f} | {ratio:.1f} | {verdict} |"


def page(folder: Path, rounds: int, scale: int) -> Iterator[str]:
    """Return the whole page, line by line as it is measured."""
    yield "# Difference of two saved states, on a CPU\n"
    yield (
        f"Written by `make bench-diff`; the fastest of {rounds} rounds in which all ways take "
        "turns, each a whole process."
    )
    yield f"Files are in the page cache.\n\n{about(None)}\n"
    yield (
        "`repro-gate diff` compares bytes and takes the figures of docs/diff.md where they differ. "
        "The first other way is `torch.load` of both, then for each tensor a subtraction, the "
        "largest difference and the count of elements that differ. Where the largest tensor "
        "differs, another takes the figures that ours takes. The last maps both files and compares "
        "their bytes: the limit of any way.\n"
    )
    yield "| two files | way | s | times ours | goal |"
    yield "|---|---|---|---|---|"
    large, small = (max(1, LAYERS // scale), 0), (SMALL_TENSORS // scale, SMALL_ELEMENTS)
    many = f"{SMALL_TENSORS // scale:,} tensors of 4 KiB"
    for name, (count, elements), moved, goal in (
        ("large, equal", large, "none", SUBTRACTS),
        ("large, the smallest tensor differs", large, "last", SUBTRACTS),
        (LARGEST, large, "first", SAME),
        ("large, all tensors differ", large, "all", ""),
        (f"{many}, one differs", small, "last", ""),
    ):
        paths = pair(folder, count, elements, moved=moved)
        size_bytes = paths[0].stat().st_size
        title = f"{name} ({size_bytes / 1e9:.2f} GB each)"
        yield from rows(title, paths, rounds, goal)
    yield f"\nLoad of the machine at the end (1, 5, 15 minutes): {load()}."


def main() -> None:
    """Measure, print the page, and write it to `--out` if that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", type=int, default=1, help="files so many times smaller")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_page(page(Path(name), options.rounds, options.scale), options.out)


if __name__ == "__main__":
    main()
