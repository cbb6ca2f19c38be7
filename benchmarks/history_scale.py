"""Measure service levels over a year of ten thousand verdicts a day. `make bench-history`.

The lines are generated, but the files are real: a few a day, as `repro-gate history compact` leaves
them.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

from measured_processes import processor

from gate.fleet.indicators import GroupBy, SloReport, slo_report
from gate.fleet.reading import Reading
from gate.fleet.stores import BATCH, FolderStore
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart
from gate.report.page.slo_page import slo_page
from gate.settings.slo import SloSettings
from gate.system.files.files import LocalFiles
from gate.text.documents import RecordForm
from gate.verdict.history_lines import HistoryLine, line_bytes
from gate.verdict.verdict import Outcome

# today at midnight, because the command line counts days back from now
END = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
GATES = 200
FILE_LINES = 100_000
DAY_SECONDS = 86400
ABOUT = (
    "`slo` keeps no lines: it remembers a million commits at most (M4), and 8 bytes for each line "
    "of one day. Peak memory is that of the confined process. The page is what `--format html` "
    "prints; it is made in the seconds beside its size. `history report` is the whole command, and "
    "prints the newest 200 lines."
)
REPORT: RecordForm[SloReport] = RecordForm(SloReport)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One reading of a history: its lines, bytes on disk, CPU seconds and peak memory in bytes.

    `page_seconds` is None if the page is not timed separately.
    """

    name: str
    lines: int
    size_bytes: int
    seconds: float
    peak_bytes: int
    page_bytes: int
    page_seconds: float | None = None


def pattern() -> bytes:
    """Return a typical line, with the placeholders RUN, GATE and COMMIT to be replaced."""
    line = HistoryLine(
        judged_at=(END - timedelta(days=1)).isoformat(),
        run_id="RUN",
        gate_id="GATE",
        repository="organisation/repository",
        commit="0" * 40,
        author="a-person",
        runner="runner-07",
        environment="0123456789abcdef",
        outcome=Outcome.REPRODUCED,
        passes=True,
        digests_equal=True,
        metric="train/loss",
        last="0.6931471805599453",
        spread=0.0,
        data_verified=True,
        step_seconds=0.125,
        training_seconds=500.0,
        seconds=600.0,
        sealed=True,
    )
    return line_bytes(line).replace(b"0" * 40, b"COMMIT")


def write_year(folder: Path, days: int, a_day: int) -> int:
    """Write `a_day` lines for each day, in files of at most 100,000; return their total bytes."""
    usual, size_bytes = pattern(), 0
    moment = (END - timedelta(days=1)).isoformat().encode()
    for day, first in product(range(days), range(0, a_day, FILE_LINES)):
        start = END - timedelta(days=days - day)
        place = folder / f"{start:%Y-%m-%d}"
        place.mkdir(parents=True, exist_ok=True)
        with (place / f"{BATCH}{first:016x}.jsonl").open("wb") as file:
            for number in range(first, min(a_day, first + FILE_LINES)):
                at = start + timedelta(seconds=number * DAY_SECONDS / a_day)
                row = usual.replace(moment, at.isoformat().encode())
                row = row.replace(b"RUN", b"%d" % (day * a_day + number))
                row = row.replace(b"GATE", b"gate-%d" % (number % GATES))
                size_bytes += file.write(row.replace(b"COMMIT", b"%040x" % (day * a_day + number)))
                size_bytes += file.write(b"\n")
    return size_bytes


def measured(name: str, folder: Path, size_bytes: int, days: float) -> Measured:
    """Measure `slo` over the last days, in the confined process that the command uses."""
    store = FolderStore(folder, LocalFiles())

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = read_apart(
        REPORT,
        lambda: slo_report(
            Reading(store, END - timedelta(days=days), END),
            SloSettings(),
            (GroupBy.GATE,),
            days=days,
        ),
        what=name,
        seconds=7200.0,
        answer_bytes=LARGE_ANSWER_BYTES,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # CPU time, which other work on the machine hardly changes
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # The kernel reports the largest child so far. Readings go from small to large, so that is this
    # one.
    peak = after.ru_maxrss * 1024
    begun = time.process_time()
    page_bytes = len(slo_page(report).encode("utf-8"))
    page_seconds = time.process_time() - begun
    return Measured(
        name=name,
        lines=report.lines,
        size_bytes=size_bytes,
        seconds=seconds,
        peak_bytes=peak,
        page_bytes=page_bytes,
        page_seconds=page_seconds,
    )


def reported(folder: Path, size_bytes: int, days: int, a_day: int) -> Measured:
    """Measure the whole command `history report` over the last days."""
    words = ("history", "report", "--history", str(folder), "--since", f"{days}d")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = subprocess.run((sys.executable, "-m", "gate", *words), stdout=-1, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measured(
        name=f"`history report`, {days} days",
        lines=days * a_day,
        size_bytes=size_bytes,
        seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        peak_bytes=after.ru_maxrss * 1024,
        page_bytes=len(printed),
    )


def main() -> None:
    """Measure, and write the page to `--out`."""
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--days", type=int, default=365)
    options.add_argument("--a-day", type=int, default=10_000)
    options.add_argument("--lines", type=int, default=10_000_000)
    asked = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="history-scale-"))
    try:
        size_bytes = write_year(folder / "year", asked.days, asked.a_day)
        spans = tuple(dict.fromkeys((min(7, asked.days), min(28, asked.days), asked.days)))
        rows = [reported(folder / "year", size_bytes, days, asked.a_day) for days in spans[:2]]
        rows += [measured(f"{days} days", folder / "year", size_bytes, days) for days in spans]
        shutil.rmtree(folder / "year")
        # ten million lines in ten days: a thousand times the usual day
        size_bytes = write_year(folder / "many", 10, asked.lines // 10)
        rows.append(measured(f"{asked.lines:,} lines in ten days", folder / "many", size_bytes, 10))
    finally:
        shutil.rmtree(folder)
    asked.out.write_text(page(rows, asked.days, asked.a_day, asked.lines), "utf-8")


def page(rows: list[Measured], days: int, a_day: int, many: int) -> str:
    """Return the page in Markdown."""
    written = (
        f"Written by `benchmarks/history_scale.py --days {days} --a-day {a_day} --lines {many}`, "
        f"of {GATES} gates. {datetime.now(UTC):%Y-%m-%d}, {processor()}."
    )
    lines = [
        "# Service levels over a large history",
        "",
        written,
        "",
        ABOUT,
        "",
        "| reading | lines | on disk | CPU seconds | lines per s | peak memory | page | made in |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.name} | {row.lines:,} | {row.size_bytes / 1e9:.2f} GB | {row.seconds:,.0f} | "
        f"{row.lines / row.seconds:,.0f} | {row.peak_bytes / 2**20:,.0f} MiB | "
        f"{row.page_bytes / 1e3:,.0f} kB | "
        f"{'' if row.page_seconds is None else f'{row.page_seconds:.2f} s'} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
