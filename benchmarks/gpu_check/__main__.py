"""`python -m gpu_check [PART ...]`: run each part in a separate process, and write one page."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from gate.errors import GateError
from gpu_check.bench import DRY_SIZES, GPU_SIZES, Bench, here, last_line
from gpu_check.machine import machine
from gpu_check.page import page, section, slug
from gpu_check.parts import BY_NAME, PARTS, Part, function_of
from gpu_check.rows import Machine, PartResult, held, read_rows
from gpu_check.trained import told_error

PART_SECONDS = 600.0


def run_part(part: Part, folder: Path, *, dry: bool, seconds: float) -> PartResult:
    """Run one part in a separate process group, and return its rows.

    The rows that it wrote count even if the part crashed or timed out; a failed row is added then.
    """
    place = Path(tempfile.mkdtemp(dir=folder, prefix=f"{part.name}-"))
    place.chmod(0o755)
    rows_file, log = place / "rows.jsonl", place / "log.txt"
    rows_file.touch()
    words = ["--look", part.where, "--folder", str(place), *["--dry"] * dry]
    day, begun = time.strftime("%Y-%m-%d"), time.monotonic()
    with log.open("wb") as output:
        child = subprocess.Popen(
            (sys.executable, "-m", "gpu_check", *words),
            env=here(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            child.wait(timeout=seconds)
            ended = f"ended with {child.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"took longer than {seconds:.0f} s"
        finally:
            _end(child)
    rows = read_rows(rows_file.read_text("utf-8").splitlines(keepends=True))
    if child.returncode != 0:
        why = last_line(log.read_text("utf-8", "replace"))
        rows = (*rows, held("the part itself", f"{ended}: {why}", holds=False))
    taken = time.monotonic() - begun
    return PartResult(name=part.name, title=part.title, rows=rows, seconds=taken, day=day)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the part's whole process group: SIGTERM first, then SIGKILL after ten seconds."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def look(where: str, folder: Path, *, dry: bool) -> None:
    """Run a part inside its process, and write each row as soon as it is known.

    So a timeout or a crash loses only the row in progress.
    """
    bench = Bench(gpu=not dry, sizes=DRY_SIZES if dry else GPU_SIZES, folder=folder)
    with (folder / "rows.jsonl").open("a", encoding="utf-8") as rows:
        try:
            for row in function_of(where)(bench):
                rows.write(f"{row.line()}\n")
                rows.flush()
        except GateError as error:
            rows.write(f"{held('the part itself', told_error(error), holds=False).line()}\n")


def main() -> int:
    """Run the named parts, or all; return 1 if something did not hold, and 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(BY_NAME))
    parser.add_argument("--dry", action="store_true", help="on the CPU, and no page")
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    parser.add_argument("--seconds", type=float, default=PART_SECONDS, help="of a part at most")
    parser.add_argument("--jobs", type=int, default=1, help="parts at a time")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--look", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.look:
        look(asked.look, asked.folder, dry=asked.dry)
        return 0
    unknown = [name for name in asked.parts if name not in BY_NAME]
    if unknown:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(BY_NAME)}")
    chosen = [part for part in PARTS if part.name in asked.parts or not asked.parts]
    seen = machine()
    if not seen.gpu and not asked.dry:
        print(
            "error: torch sees no CUDA device; `make gpu-dry` runs what a CPU can", file=sys.stderr
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        folder = Path(name)
        # another account trains below this folder, and a temporary folder has mode 0700
        folder.chmod(0o755)
        run = partial(run_part, folder=folder, dry=asked.dry, seconds=asked.seconds)
        results = []
        with ThreadPoolExecutor(asked.jobs) as pool:
            for ended in as_completed([pool.submit(run, part) for part in chosen]):
                result = ended.result()
                print(section(result, seen), flush=True)
                results.append(result)
                if not asked.dry:
                    # after each part, so that results are kept if a later part ends the machine
                    _write(asked.results / f"gpu-{slug(seen.gpu)}.md", result, seen)
    failed = [result.name for result in results if result.failed]
    print(f"failed: {', '.join(failed)}" if failed else f"{len(results)} part(s) held")
    return 1 if failed else 0


def _write(path: Path, result: PartResult, seen: Machine) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text("utf-8") if path.exists() else ""
    path.write_text(page((result,), seen, tuple(BY_NAME), before), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
