"""Measure the digest of declared data beside coreutils and DVC. `make bench-data`.

Every number is the fastest of several rounds. In each round all ways take turns, each as a whole
process on one machine. The program prints a Markdown page; `--out FILE` also writes it to a file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from measured_processes import Taken, load, processor, program, run, write_page

from gate.data.hashing import SETTLED_NANOSECONDS

ROUNDS = 5
QUIET_LOAD = 1.0
TOTAL_BYTES = 2_000_000_000
COUNTS = (10, 20_000)
FILES_IN_A_FOLDER = 200
# for each number of files: names per process of xargs, few enough to keep all processes busy
NAMES = {10: 1, 20_000: 250}
OURS_NAME = "this gate, every byte"
OURS = """
import sys, time
from pathlib import Path
from gate.data.hashing import DigestCache
from gate.data.listing import take_listing
from gate.data.data_digests import data_parts, listing_digest
from gate.settings.data import Verify
begun = time.perf_counter()
source, verify, cache = sys.argv[1:]
listing = take_listing(Path(source), Verify(verify), DigestCache(Path(cache)))
digest, parts = listing_digest(listing.files), data_parts(listing.files)
seconds = time.perf_counter() - begun
print(seconds, digest, Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])
"""
LISTED = "cd {data} && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 {how}"


@dataclass(frozen=True, kw_only=True)
class Way:
    """A command, and the preparation before each of its turns, which is not timed."""

    command: tuple[str, ...]
    prepare: Callable[[], object] = lambda: None


def make_files(folder: Path, count: int, total_bytes: int) -> None:
    """Write files of random bytes, which no file system can deduplicate or store as holes."""
    size_bytes = total_bytes // count
    for number in range(count):
        path = folder / str(number // FILES_IN_A_FOLDER) / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size_bytes))


def ways(data: Path, cache: Path, count: int, dvc: str | None) -> dict[str, Way]:
    """Return each way to digest a folder that is installed on this machine."""
    cores = len(os.sched_getaffinity(0))
    spread = f"-P {cores} -n {NAMES[count]} sha256sum"
    found = {
        OURS_NAME: _ours(data, "full", cache),
        "this gate, with its cache": _ours(data, "cached", cache),
        "this gate, a sample": _ours(data, "sample", cache),
        "`sha256sum`, one process": _shell(data, "sha256sum"),
        f"`sha256sum`, {cores} processes": _shell(data, spread),
    }
    if shutil.which("openssl"):
        found["`openssl dgst -sha256`, one process"] = _shell(data, "openssl dgst -sha256")
    if dvc is not None:
        repository = data.parent / f"dvc-{count}"
        shutil.copytree(data, repository / "data")
        add = Way(command=(dvc, "--cd", str(repository), "add", "-q", "data"))
        found["`dvc add`, the first time"] = Way(
            command=add.command, prepare=lambda: _fresh_dvc(dvc, repository)
        )
        found["`dvc add` again"] = add
    return found


def _ours(data: Path, verify: str, cache: Path) -> Way:
    return Way(command=program(OURS, data, verify, cache))


def _shell(data: Path, how: str) -> Way:
    return Way(command=("/bin/sh", "-c", LISTED.format(data=data, how=how) + " > /dev/null"))


def _fresh_dvc(dvc: str, repository: Path) -> None:
    """Reset DVC's repository, with hard links for its cache, so that copying is not measured."""
    shutil.rmtree(repository / ".dvc", ignore_errors=True)
    (repository / "data.dvc").unlink(missing_ok=True)
    settings = {
        "cache.type": "hardlink",
        "core.analytics": "false",
        "core.site_cache_dir": str(repository / ".dvc" / "site"),
    }
    commands = [("init", "-q", "--no-scm"), *(("config", *each) for each in settings.items())]
    for command in commands:
        subprocess.run((dvc, "--cd", str(repository), *command), check=True, capture_output=True)


def fastest(found: Mapping[str, Way], rounds: int) -> dict[str, Taken]:
    """Return the fastest process of each way over some rounds, in which all ways take turns."""
    best: dict[str, Taken] = {}
    for _ in range(rounds):
        for name, way in found.items():
            way.prepare()
            taken = run(way.command)
            if name not in best or taken.process_seconds < best[name].process_seconds:
                best[name] = taken
    return best


def table(found: Mapping[str, Taken], size_bytes: int) -> Iterator[str]:
    """Return a table with a row per way, and its time as a multiple of this gate's full reading."""
    yield "| way | process s | GB/s | times this gate |"
    yield "|---|---|---|---|"
    ours = found[OURS_NAME].process_seconds
    for name, taken in found.items():
        seconds = taken.process_seconds
        rate = size_bytes / seconds / 1e9
        yield f"| {name} | {seconds:.3f} | {rate:.2f} | {seconds / ours:.2f} |"


def section(
    folder: Path, count: int, total_bytes: int, rounds: int, dvc: str | None
) -> Iterator[str]:
    """Measure all ways on one data set; ends the program if coreutils gives another digest."""
    data, cache = folder / f"data-{count}", folder / f"cache-{count}"
    make_files(data, count, total_bytes)
    found = ways(data, cache, count, dvc)
    # the digest cache does not trust files that changed a moment ago, so wait until they settle
    time.sleep(2 * SETTLED_NANOSECONDS / 1e9)
    ours = run(_ours(data, "full", cache).command).told[0]
    told = subprocess.run(
        ("/bin/sh", "-c", LISTED.format(data=data, how="sha256sum") + " | sha256sum"),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()[0]
    if ours != told:
        raise SystemExit(f"the digest is {ours}, that of coreutils {told}")
    taken = fastest(found, rounds)
    yield from table(taken, total_bytes)
    peak = int(taken[OURS_NAME].told[1]) / 1000
    yield f"\nThe digest is that of coreutils. Memory of this gate: {peak:.0f} MB at most."
    shutil.rmtree(folder)
    folder.mkdir()


def page(folder: Path, rounds: int, scale: int, dvc: str | None) -> Iterator[str]:
    """Return the whole page, line by line as it is measured."""
    versions = [_version("sha256sum")]
    versions += [_version("openssl", "version")] if shutil.which("openssl") else []
    versions += [f"DVC {_version(dvc)}"] if dvc else []
    yield "# Digest of declared data, on a CPU\n"
    yield f"Written by `make bench-data`; the fastest of {rounds} rounds in which all take turns."
    yield "Files are in the page cache. `dvc add` makes MD5 sums, and links files into its cache."
    yield "coreutils may be built without the processor's instructions for SHA-256.\n"
    yield (
        f"{time.strftime('%Y-%m-%d')}. {processor()}, {len(os.sched_getaffinity(0))} cores; "
        f"Python {sys.version.split()[0]}, {', '.join(versions)}. Load at the start: {load()}."
    )
    if os.getloadavg()[0] > QUIET_LOAD:
        yield "Others used the machine too: its ratios say more than its seconds."
    for count in COUNTS:
        total = TOTAL_BYTES // scale
        yield f"\n## {total / 1e9:g} GB in {count:,} files\n"
        yield from section(folder, count, total, rounds, dvc)
    yield f"\nLoad of the machine at the end (1, 5, 15 minutes): {load()}."


def _version(command: str, option: str = "--version") -> str:
    told = subprocess.run((command, option), check=True, capture_output=True, text=True).stdout
    words = (
        told.splitlines()[0].split(" (Library")[0].replace("sha256sum (GNU coreutils)", "coreutils")
    )
    return words.strip()


def main() -> None:
    """Measure, print the page, and write it to `--out` if that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", type=int, default=1, help="files so many times smaller")
    parser.add_argument(
        "--dvc", default=shutil.which("dvc"), help="the program, where there is one"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        folder.mkdir()
        write_page(page(folder, options.rounds, options.scale, options.dvc), options.out)


if __name__ == "__main__":
    main()
