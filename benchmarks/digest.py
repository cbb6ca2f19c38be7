"""Measure the digest of a checkpoint, and other ways to hash the file. `make bench-digest`.

Every number is the fastest of several rounds. In each round all ways take turns, each as a whole
process on one machine. The program prints a Markdown page; `--out FILE` also writes it to a file.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from digest_workloads import (
    MAKE_SAFETENSORS,
    MAKE_ZIP,
    MAPPED,
    MODEL_SIGNING,
    NAIVE,
    ONE_THREAD,
    OURS,
    READ,
    SMALL_LIMITS,
)
from measured_processes import Taken, about, fastest, load, program, run, write_page

ROUNDS = 7
LAYERS = 32
SMALL_TENSORS = 20_000
SMALL_ELEMENTS = 1024
TENSOR_COUNTS = (2_500, 5_000, 10_000, 20_000, 40_000)
BYTE_COUNTS = (64, 128, 256, 512, 1024)
MEGABYTE = 1_000_000
BAR = 40
SIGNING = "model_signing, SHA-256, shards"
NAIVE_WAY = "`torch.load`, hash each tensor"


def ways(path: Path, signing: str | None, *, naive: bool) -> dict[str, tuple[str, ...]]:
    """Return a command for each way to digest the file that is installed on this machine.

    `signing` is an interpreter that has model-signing, or None. `naive` adds `torch.load`.
    """
    arms = {"this reader, SHA-256": program(OURS, path)}
    if importlib.util.find_spec("gate.commands.digest") is not None:
        arms["`repro-gate digest`"] = (sys.executable, "-m", "gate", "digest", str(path))
    arms["SHA-256 of the file, one thread"] = program(ONE_THREAD, path)
    if signing is not None:
        arms[SIGNING] = program(MODEL_SIGNING, path, python=signing)
    if naive:
        arms[NAIVE_WAY] = program(NAIVE, path)
    return arms


def table(found: Mapping[str, Taken], size_bytes: int) -> Iterator[str]:
    """Return a table with a row per way, and its time as a multiple of this reader's."""
    yield "| way | process s | work s | GB/s of the work | times this reader |"
    yield "|---|---|---|---|---|"
    ours = found["this reader, SHA-256"].process_seconds
    for name, taken in found.items():
        yield (
            f"| {name} | {taken.process_seconds:.3f} | {taken.work_seconds:.3f} | "
            f"{size_bytes / taken.work_seconds / 1e9:.2f} | {taken.process_seconds / ours:.2f} |"
        )


def goals(found: Mapping[str, Taken], wanted: Mapping[str, float]) -> Iterator[str]:
    """Return a line per way with a goal: its ratio to this reader, and whether that is reached."""
    ours = found["this reader, SHA-256"].process_seconds
    for name, goal in wanted.items():
        if name in found:
            ratio = found[name].process_seconds / ours
            verdict = "reached" if ratio >= goal else "**not reached**"
            yield f"- {name}: {ratio:.1f} times as long; goal {goal:g}, {verdict}."


def big_file(path: Path, signing: str | None, rounds: int) -> Iterator[str]:
    """Measure one large file, as torch saves it: speed per thread, memory, and mapping the file."""
    size_bytes, threads = path.stat().st_size, len(os.sched_getaffinity(0))
    arms = ways(path, signing, naive=True)
    arms |= {"chunks from a map": program(MAPPED, path), "chunks read": program(READ, path)}
    found = fastest(arms, rounds)
    yield from table(found, size_bytes)
    ours, single = found["this reader, SHA-256"], found["SHA-256 of the file, one thread"]
    share = single.work_seconds / ours.work_seconds / threads
    yield f"\n- {share:.2f} of {threads} times the rate of one thread; goal 0.95."
    yield from goals(found, {SIGNING: 1.6, NAIVE_WAY: 6})
    anonymous, peak = (int(word) * 1024 / MEGABYTE for word in ours.told)
    yield (
        f"- Memory of this reader: {anonymous:.0f} MB anonymous at its end, {peak:.0f} MB resident "
        "at most; goal below 50 MB."
    )
    mapped, read = found["chunks from a map"], found["chunks read"]
    yield (
        "- Reading into a small buffer instead of mapping the file, all else equal: "
        f"{read.work_seconds / mapped.work_seconds:.2f} times the seconds."
    )
    for name in (SIGNING, NAIVE_WAY):
        if name in found:
            most = found[name].process_seconds / mapped.process_seconds
            yield f"- Only hashing a map of the file would be {most:.1f} times as fast as {name}."


def small_tensors(path: Path, signing: str | None, rounds: int) -> Iterator[str]:
    """Measure a file of many small tensors, in which the work per tensor dominates."""
    limits, nothing = "the limits", "an empty process"
    arms = ways(path, signing, naive=True)
    arms |= {limits: program(SMALL_LIMITS, path), nothing: program("print(0)", path)}
    found = fastest(arms, rounds)
    least = found.pop(limits)
    empty = found.pop(nothing).process_seconds
    yield from table(found, path.stat().st_size)
    yield ""
    yield from goals(found, {NAIVE_WAY: 10})
    opcodes, hashes, in_c = (float(word) for word in least.told[:3])
    yield (
        f"- Measured in the same rounds: an empty process takes {empty * 1e3:.0f} ms, and a loop "
        f"of Python that hashes as many blocks of 4 KiB {hashes * 1e3:.0f} ms. One that looks at "
        f"the pickle's {int(least.told[3]):,} opcodes and does nothing about them takes "
        f"{opcodes * 1e3:.0f} ms; this reader takes those of a tensor in one piece where they are "
        "as torch writes them, and each alone elsewhere."
    )
    yield (
        f"- The interpreter's own unpickler, in C, takes {in_c * 1e3:.0f} ms for the same pickle. "
        "It is no way to read what others wrote."
    )


def growth(folder: Path, points: tuple[tuple[int, int], ...], rounds: int) -> Iterator[str]:
    """Measure files of growing size; `points` are pairs of tensors and elements per tensor."""
    paths = {}
    for count, elements in points:
        path = folder / f"growth-{count}-{elements}.pt"
        run(program(MAKE_ZIP, path, str(count), str(elements)))
        paths[count, elements] = path
    commands = {str(path): program(OURS, path) for path in paths.values()}
    found = fastest(commands, rounds)
    longest = max(taken.work_seconds for taken in found.values())
    yield "| tensors | MB | work ms | µs a tensor | ms a MB | |"
    yield "|---|---|---|---|---|---|"
    for (count, elements), path in paths.items():
        taken = found[str(path)].work_seconds
        megabytes = count * elements * 4 / MEGABYTE
        bar = "█" * max(1, round(BAR * taken / longest))
        yield (
            f"| {count:,} | {megabytes:.0f} | {taken * 1e3:.1f} | {taken / count * 1e6:.1f} | "
            f"{taken * 1e3 / megabytes:.2f} | `{bar}` |"
        )
        path.unlink()


def page(folder: Path, signing: str | None, rounds: int, scale: int) -> Iterator[str]:
    """Return the whole page, line by line as it is measured."""
    big, small = folder / "big.pt", folder / "small.pt"
    run(program(MAKE_ZIP, big, str(max(1, LAYERS // scale)), "0"))
    run(program(MAKE_ZIP, small, str(SMALL_TENSORS // scale), str(SMALL_ELEMENTS)))
    yield "# Digest of a saved state, on a CPU\n"
    yield f"Written by `make bench-digest`; the fastest of {rounds} rounds in which all take turns."
    yield f"Files are in the page cache.\n\n{about(signing)}\n"
    yield f"\n## A large file of torch, {big.stat().st_size / 1e9:.2f} GB\n"
    yield from big_file(big, signing, rounds)
    yield f"\n## {SMALL_TENSORS // scale:,} tensors of 4 KiB, a file of torch\n"
    yield from small_tensors(small, signing, rounds)
    for path, title in ((big, "The large file"), (small, "The small tensors")):
        other = path.with_suffix(".safetensors")
        run(program(MAKE_SAFETENSORS, path, other))
        path.unlink()
        yield f"\n## {title} as safetensors\n"
        found = fastest(ways(other, signing, naive=False), rounds)
        yield from table(found, other.stat().st_size)
        other.unlink()
    yield "\n## Growth\n"
    yield "Tensors of 4 KiB, then tensors of 4 MiB.\n"
    yield from growth(folder, tuple((n // scale, SMALL_ELEMENTS) for n in TENSOR_COUNTS), rounds)
    yield ""
    yield from growth(folder, tuple((max(1, n // 4 // scale), 2**20) for n in BYTE_COUNTS), rounds)
    yield f"\nLoad of the machine at the end (1, 5, 15 minutes): {load()}."


def main() -> None:
    """Measure, print the page, and write it to `--out` if that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", type=int, default=1, help="files so many times smaller")
    parser.add_argument("--signing", help="an interpreter that has model-signing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_page(page(Path(name), options.signing, options.rounds, options.scale), options.out)


if __name__ == "__main__":
    main()
