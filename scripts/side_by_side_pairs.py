"""Do strict runs of `digits` that run at the same time ever differ? `make pairs PAIRS=1000`.

Starts several gate calls at once, each with many strict runs, and processes that only keep the
cores busy, so that there is more work than there are cores. A call whose runs differ is a false
alarm, because run one after the other they are equal. Each call adds a line to a file. A count that
was stopped therefore continues where it was, and the page is made from that file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gate_calls import Called, CalledRun, CallError, gate_call
from gate_workloads import git
from measured_processes import processor, write_page

ROOT: Final = Path(__file__).resolve().parents[1]
SETTINGS: Final = "examples/digits/repro-gate.yml"
REPEATS: Final = 10
CALLERS: Final = 3
# after this many calls in a row without a pair, conclude that this machine runs none side by side
MOST_IDLE: Final = 3
# leave default runs out: they never run beside another run, so they make no pairs
ADDED: Final = """
runs:
  parallel: {parallel}
cost:
  when: never
"""
UNEQUAL: Final = "nondeterministic"
# Ends when its parent does, even if that was killed: an orphan gets another parent.
BUSY: Final = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(1_000_000))
"""
Line = dict[str, Any]


def pairs_of(runs: Iterable[CalledRun]) -> int:
    """Count the pairs of strict runs that overlap for at least half of the shorter run's time."""
    strict = [run for run in runs if run.label.startswith("strict-")]
    return sum(_beside(one, other) for one, other in itertools.combinations(strict, 2))


def _beside(one: CalledRun, other: CalledRun) -> bool:
    shared = min(one.ended_seconds, other.ended_seconds) - max(
        one.begun_seconds, other.begun_seconds
    )
    shorter = min(run.ended_seconds - run.begun_seconds for run in (one, other))
    return shared >= shorter / 2 > 0


def line_of(called: Called, facts: Line) -> Line:
    """Return the line that is kept of a call: `facts`, its outcome, its pairs and its digest."""
    pairs = pairs_of(called.runs)
    return {
        **facts,
        "outcome": called.outcome,
        "pairs": pairs,
        "unequal": called.outcome == UNEQUAL,
        "root": called.root,
        "seconds": round(called.seconds, 1),
    }


def read_lines(path: Path, machine: str) -> list[Line]:
    """Return the lines of earlier calls on this kind of machine.

    A line that was cut off in the middle is ignored: the script may be killed while it writes.
    """
    found = []
    text = path.read_text("utf-8") if path.is_file() else ""
    for text_line in text.splitlines():
        try:
            line = json.loads(text_line)
        except ValueError:
            continue
        if line["machine"] == machine:
            found.append(line)
    return found


def counted(lines: Sequence[Line]) -> int:
    """Return how many pairs the calls compared."""
    return sum(line["pairs"] for line in lines)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep `processes` cores busy while the body runs."""
    started = [subprocess.Popen((sys.executable, "-c", BUSY)) for _ in range(processes)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def clone(folder: Path, parallel: str) -> Path:
    """Return a clone of this repository with `runs.parallel` of the example set to `parallel`."""
    top = folder / f"digits-{parallel}"
    folder.mkdir(mode=0o755)
    git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(top))
    top.chmod(0o755)
    path = top / SETTINGS
    path.write_text(f"{path.read_text('utf-8')}{ADDED.format(parallel=parallel)}", "utf-8")
    return top


def call(top: Path, facts: Line) -> Line:
    """Make one gate call with `REPEATS` strict runs; an error gives a line without pairs."""
    out = Path(tempfile.mkdtemp(dir=top.parent, prefix="out-"))
    out.chmod(0o755)
    try:
        # the example's settings were changed, and are not committed
        words = ("--allow-dirty", "--repeats", str(REPEATS))
        return line_of(gate_call(top, out, SETTINGS, words), facts)
    except CallError as fault:
        return {**facts, "outcome": f"error: {fault}", "pairs": 0, "unequal": False, "root": ""}
    finally:
        shutil.rmtree(out, ignore_errors=True)


class Count:
    """The file with a line per call, shared by all threads that make calls."""

    def __init__(self, path: Path, pairs: int, facts: Line) -> None:
        """`pairs` is the number that is wanted; `facts` go into every line."""
        self._path = path
        self._pairs = pairs
        self._facts = facts
        self._one_at_a_time = threading.Lock()
        self._idle = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def goes_on(self) -> bool:
        """Decide whether more calls are needed, and whether calls still produce pairs."""
        done = counted(read_lines(self._path, self._facts["machine"]))
        return done < self._pairs and self._idle < MOST_IDLE

    def add(self, top: Path, *, serial: bool = False) -> None:
        """Make one call and append its line; `serial` marks a call without parallel runs."""
        line = call(top, self._facts | {"serial": serial, "at": _now()})
        with self._one_at_a_time:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, sort_keys=True) + "\n")
            self._idle = 0 if serial or line["pairs"] else self._idle + 1
            done = counted(read_lines(self._path, self._facts["machine"]))
            sys.stdout.write(f"{done} of {self._pairs} pairs: {line['outcome']}\n")
            sys.stdout.flush()

    def add_until_enough(self, top: Path) -> None:
        """Make calls in `top` until no more are needed."""
        while self.goes_on:
            self.add(top)


def calls(count: Count, callers: int, workers: int) -> None:
    """Make calls from `callers` threads, beside `workers` busy processes, until pairs suffice."""
    with tempfile.TemporaryDirectory(prefix="repro-gate-pairs-") as name:
        folder = Path(name)
        # the training's account must be able to enter: a temporary folder has mode 0700
        folder.chmod(0o755)
        with busy(workers):
            # first a call whose runs go one after the other: the result that the others must have
            count.add(clone(folder / "serial", "never"), serial=True)
            tops = [clone(folder / str(number), "auto") for number in range(callers)]
            threads = [threading.Thread(target=count.add_until_enough, args=(top,)) for top in tops]
            for one in threads:
                one.start()
            for one in threads:
                one.join()


def page(lines: Sequence[Line]) -> Iterator[str]:
    """Return the page in Markdown: the counts, then machine, dates, and each alarm and error."""
    alarms = [line for line in lines if line["unequal"]]
    failed = [line for line in lines if line["outcome"].startswith("error")]
    judged = [line for line in lines if line not in failed]
    roots = {line["root"] for line in judged}
    serial = {line["root"] for line in judged if line["serial"]}
    yield "# Strict runs side by side, on a CPU\n"
    yield "Written by `make pairs`. Gate calls over `examples/digits` with"
    yield f"{REPEATS} strict runs each, several calls at the same time; two runs of a call are a"
    yield "pair where they shared at least half of the shorter one's time. Every run of a call is"
    yield "compared with its first, bit for bit, and with the committed baseline.\n"
    yield "| | count |"
    yield "|---|---|"
    yield f"| pairs side by side | {counted(lines):,} |"
    yield f"| calls | {len(lines):,} |"
    yield f"| calls whose runs differed | **{len(alarms)}** |"
    yield f"| calls that ended in an error | {len(failed)} |"
    yield f"| different results over all calls | {len(roots)} |"
    yield f"| different results of calls with one run after the other | {len(serial)} |"
    dates = sorted(line["at"] for line in lines)
    commits = sorted({line["commit"][:12] for line in lines})
    callers = sorted({line["callers"] for line in lines})
    busiest = sorted({line["workers"] for line in lines})
    shown = f"{dates[0]} to {dates[-1]}" if dates else "none yet"
    yield (
        f"\n{shown}; commits {', '.join(commits)}; calls at the same time: {callers}; processes "
        f"beside them that kept it busy: {busiest}."
    )
    yield f"\n{lines[-1]['machine'] if lines else machine()}."
    yield from (f"\n- {line['at']}: {line['outcome']}" for line in (*alarms, *failed))


def machine() -> str:
    """Describe the machine; only lines with the same description are counted together."""
    return (
        f"{processor()}, {len(os.sched_getaffinity(0))} cores, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}"
    )


def _now() -> str:
    return time.strftime("%Y-%m-%d")


def main() -> int:
    """Count and write the page; return 1 if runs differed, a call failed or pairs are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--counts", type=Path, required=True, help="the file of lines")
    parser.add_argument("--out", type=Path, help="the page")
    parser.add_argument("--callers", type=int, default=CALLERS, help="calls at the same time")
    parser.add_argument("--workers", type=int, default=1, help="busy processes beside them")
    options = parser.parse_args()
    head = subprocess.run(
        (shutil.which("git") or "git", "-C", str(ROOT), "rev-parse", "HEAD"),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    facts: Line = {
        "machine": machine(),
        "commit": head,
        "callers": options.callers,
        "workers": options.workers,
    }
    count = Count(options.counts, options.pairs, facts)
    if count.goes_on:
        calls(count, options.callers, options.workers)
    lines = read_lines(options.counts, facts["machine"])
    write_page(page(lines), options.out)
    if counted(lines) < options.pairs:
        sys.stdout.write(
            "No two strict runs were side by side in the last calls: see their lines.\n"
        )
        return 1
    return int(any(line["unequal"] or not line["root"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
