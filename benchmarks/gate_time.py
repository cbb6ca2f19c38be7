"""Measure what a whole gate call adds to its trainings, and how that grows. `make bench-gate`.

Both sides of every ratio come from one run of this program, in turns, on one machine. Of several
rounds the fastest of each side counts, because other work on the machine can only slow it down. The
program prints a Markdown page; `--out FILE` also writes it to a file.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gate_calls import Called, CallError, bare_seconds, gate_call
from gate_pulls import WAYS, Pull, PullScene
from gate_workloads import (
    CALIBRATED,
    CALIBRATING_STEPS,
    LONG,
    METRICS,
    STATE,
    Workload,
    commit_all,
    git,
    make_repository,
)
from measured_processes import file_system, load, processor, program, run, write_page

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 3
RUNS = 4
MEGA, GIGA = 1_000_000, 1_000_000_000
LONG_SECONDS = 30.0
MARGIN = 1.1
STATE_STEPS = 25
STATE_BYTES = 100 * MEGA
STATES = (MEGA, 100 * MEGA, GIGA, 4 * GIGA)
# pairs of the number of metrics and the number of steps
BY_METRICS = ((1, 1_000), (10, 1_000), (100, 1_000))
BY_STEPS = ((1, 1_000), (1, 10_000), (1, 100_000))
BEYOND = (10, 100_000)
# limits for one more step of a long training, over all runs of a call
STEP_BYTES = 200
STEP_MICROSECONDS = 50
LIMIT_TOLD = "numbers in one run"
# tolerated factors: by how much time may exceed a straight line, and memory its smallest peak
BENT = 1.25
SAME_MEMORY = 1.25
QUIET_LOAD = 1.0
PARTS = ("ratio", "digits", "pull", "own", "metrics", "state")
DIGITS = "examples/digits/repro-gate.yml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of the table of aims; `met` is None if the aim could not be measured here."""

    what: str
    measured: str
    aim: str
    met: bool | None

    @property
    def line(self) -> str:
        """The row in Markdown."""
        word = {True: "met", False: "**missed**", None: "not measured"}[self.met]
        return f"| {self.what} | {self.measured} | {self.aim} | {word} |"


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A gate call over a training of a given size: numbers logged, or bytes of state."""

    size: int
    called: Called


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """The place and the extent of the measurements.

    `folder` is empty and readable by other accounts, since trainings may run under one. Durations
    and sizes are divided by `scale`. `image` is empty without a container image.
    """

    folder: Path
    rounds: int
    scale: int
    image: str

    def calls(
        self, name: str, workload: Workload, rounds: int | None = None, settings: str = ""
    ) -> Called:
        """Return the fastest of some calls; raises `CallError` if one gives no verdict."""
        top = self.repository(name, workload, settings)
        return min(
            (self.call(top, "repro-gate.yml") for _ in range(rounds or self.rounds)),
            key=lambda called: called.own_seconds,
        )

    def repository(self, name: str, workload: Workload, settings: str = "") -> Path:
        """Create a repository with the training, and append `settings` to its settings file."""
        top = make_repository(self.folder / name, workload)
        if settings:
            path = top / "repro-gate.yml"
            path.write_text(path.read_text("utf-8") + settings, "utf-8")
            commit_all(top)
        return top

    def call(self, top: Path, settings: str) -> Called:
        """Make one call, and remove its output folder afterwards."""
        out = Path(tempfile.mkdtemp(dir=self.folder))
        out.chmod(0o755)
        try:
            return gate_call(top, out, settings)
        finally:
            shutil.rmtree(out)


def ratio_row(
    what: str, bare: Sequence[float], calls: Sequence[Called], most: float, *, can: bool = True
) -> Row:
    """Return the row for the fastest call over the fastest bare trainings.

    `can` is false if the aim does not apply to this machine, such as parallel runs on one core.
    """
    fastest = min(calls, key=lambda called: called.seconds)
    ratio = fastest.seconds / min(bare)
    return Row(
        what=what,
        measured=f"{ratio:.2f} times ({fastest.seconds:.1f} s of which own "
        f"{fastest.own_seconds:.1f}, over {min(bare):.1f} s)",
        aim=f"≤ {most:g} times",
        met=ratio <= most if can else None,
    )


def long_rows(scene: Scene) -> Iterator[Row]:
    """Compare a gate call over a long training with four bare ones, parallel runs on and off."""
    step = run(program(CALIBRATED, str(CALIBRATING_STEPS))).work_seconds
    steps = max(3, round(MARGIN * LONG_SECONDS / scene.scale / step))
    workload = Workload(script=LONG, words=(str(steps),), steps=steps)
    ways = {
        way: scene.repository(f"long-{way}", workload, f"runs:\n  parallel: {way}\n")
        for way in ("auto", "never")
    }
    bare: list[float] = []
    calls: dict[str, list[Called]] = {way: [] for way in ways}
    for _ in range(scene.rounds):
        bare.append(bare_seconds(ways["auto"], workload.words, RUNS))
        for way, top in ways.items():
            calls[way].append(scene.call(top, "repro-gate.yml"))
    each = min(bare) / RUNS
    cores = len(os.sched_getaffinity(0))
    what = f"gate over its {RUNS} bare trainings of {each:.0f} s, one after the other"
    yield ratio_row(f"{what}; `runs.parallel: auto`", bare, calls["auto"], 0.75, can=cores > 1)
    yield ratio_row(f"{what}; `runs.parallel: never`", bare, calls["never"], 1.05)


# the aims for a pull request that changes a page, as multiples of one bare training
PULL_MOST = dict(zip(WAYS, (None, 1.2, 1.1, None), strict=True))
ANSWER_SECONDS = 5.0
DRIFT_SHARE = 0.6


def pull_rows(scene: Scene) -> Iterator[Row]:
    """Compare pull requests, one that changes a page and one that drifts, with a golden test."""
    step = run(program(CALIBRATED, str(CALIBRATING_STEPS))).work_seconds
    steps = max(3, round(MARGIN * LONG_SECONDS / scene.scale / step))
    workload = Workload(script=LONG, words=(str(steps),), steps=steps)
    scenes = {
        way: PullScene(scene.folder / f"pull-{number}", workload, settings)
        for number, (way, settings) in enumerate(WAYS.items())
    }
    first, *_, one, _ = scenes.values()
    first.golden()
    bare: list[float] = []
    golden: list[float] = []
    calls: dict[str, list[Pull]] = {way: [] for way in scenes}
    drifts: list[tuple[Pull, Pull]] = []
    for _ in range(scene.rounds):
        bare.append(first.bare(workload.words))
        golden.append(first.golden())
        for way, there in scenes.items():
            calls[way].append(there.call(there.page))
        drifts.append((first.call(first.drift), one.call(one.drift)))
    alone = min(bare)
    yield Row(
        what=f"`pytest` with golden values over one bare training of {alone:.0f} s",
        measured=f"{min(golden) / alone:.2f} times ({min(golden):.1f} s)",
        aim="for comparison",
        met=None,
    )
    for way, made in calls.items():
        yield _pull_row(way, min(made, key=lambda call: call.seconds), alone)
    usual, fast = (min(call.seconds for call in side) for side in zip(*drifts, strict=True))
    yield Row(
        what="a pull request that drifts, `init --fast` over default settings",
        measured=f"{fast / usual:.2f} times ({fast:.1f} s over {usual:.1f} s)",
        aim=f"≤ {DRIFT_SHARE:g} times",
        met=fast / usual <= DRIFT_SHARE,
    )


def _pull_row(way: str, call: Pull, alone: float) -> Row:
    most, ratio = PULL_MOST[way], call.seconds / alone
    aim, met = "for comparison", None
    if most is not None:
        aim, met = f"≤ {most:g} times", ratio <= most
    elif call.runs == 0:
        aim, met = f"≤ {ANSWER_SECONDS:g} s", call.seconds <= ANSWER_SECONDS
    return Row(
        what=f"a pull request that changes a page, {way}, over one bare training",
        measured=f"{ratio:.2f} times ({call.seconds:.1f} s, {call.runs} runs, `{call.outcome}`)",
        aim=aim,
        met=met,
    )


def digits_rows(scene: Scene) -> Iterator[Row]:
    """Measure the example `digits` in a clone of this repository, as a new user calls it."""
    top = scene.folder / "digits"
    git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(top))
    top.chmod(0o755)
    bare, calls = [], []
    for _ in range(scene.rounds):
        bare.append(bare_seconds(top / "examples/digits", (), RUNS))
        # the gate refuses uncommitted changes, and the bare runs have written files
        git(top, "clean", "--quiet", "-fd")
        calls.append(scene.call(top, DIGITS))
    yield ratio_row(f"`digits` over {RUNS} bare runs of it", bare, calls, 0.8)


def own_rows(scene: Scene) -> Iterator[Row]:
    """Measure the time outside of a call's runs: under another account, and in a container."""
    total = STATE_BYTES // scene.scale
    workload = Workload(
        script=STATE, words=(str(STATE_STEPS), str(total)), steps=STATE_STEPS, isolation="uid"
    )
    what = f"own time, {STATE_STEPS} steps, {total / MEGA:g} MB of state"
    yield own_row(
        f"{what}, isolation `uid`", lambda: scene.calls("own-uid", workload), most_seconds=3
    )
    boxed = replace(workload, isolation="container", image=scene.image)
    why = "" if scene.image else "no image was given (`IMAGE=sha256:...`)"
    yield own_row(
        f"{what}, in a container",
        lambda: scene.calls("own-container", boxed),
        most_seconds=5,
        why_not=why,
    )


def own_row(
    what: str, measure: Callable[[], Called], *, most_seconds: float, why_not: str = ""
) -> Row:
    """Return the row for a call's own seconds, or for the reason why there are none."""
    aim = f"≤ {most_seconds:g} s"
    try:
        called = None if why_not else measure()
    except CallError as fault:
        called, why_not = None, str(fault)
    if called is None:
        return Row(what=what, measured=why_not, aim=aim, met=None)
    own = called.own_seconds
    return Row(
        what=what,
        measured=f"{own:.1f} s of {called.seconds:.1f} s",
        aim=aim,
        met=own <= most_seconds,
    )


def is_linear(points: Sequence[tuple[int, float]]) -> bool:
    """Decide whether the last step of growth is no steeper than the one before it, within `BENT`.

    `points` are pairs of size and seconds, with different sizes. The time of the smallest is
    subtracted, because every call pays it.
    """
    (first_size, first), *_, (before_size, before), (last_size, last) = sorted(points)
    grown = (last_size - first_size) / (before_size - first_size)
    return last - first <= BENT * grown * max(before - first, 0.0) or last <= before


def bytes_each(points: Sequence[Point]) -> float:
    """Return the bytes of memory that each further unit of size takes, from smallest to largest."""
    first, last = (edge(points, key=lambda point: point.size) for edge in (min, max))
    return max(0, last.called.own_bytes - first.called.own_bytes) / (last.size - first.size)


def growth_rows(what: str, each: str, points: Sequence[Point], failed: str) -> Iterator[Row]:
    """Return rows that say whether time is linear and memory constant over growing sizes.

    `each` names one unit of size, such as `step`. `failed` says which size gave no verdict.
    """
    sizes = [(point.size, point.called.own_seconds) for point in points]
    peaks = [point.called.own_bytes for point in points]
    # a curve needs three points
    whole = not failed and len(points) > len("ab")
    yield Row(
        what=f"{what}: own time grows",
        measured=failed or "see the table",
        aim="linearly",
        met=is_linear(sizes) if whole else None if not failed else False,
    )
    yield Row(
        what=f"{what}: memory of the gate's process",
        measured=f"{min(peaks) / MEGA:.0f} MB to {max(peaks) / MEGA:.0f} MB, "
        f"{bytes_each(points):,.0f} bytes for each {each}"
        if whole
        else failed or "fewer than three sizes",
        aim="constant",
        met=max(peaks) <= SAME_MEMORY * min(peaks) if whole else None if not failed else False,
    )


def step_rows(points: Sequence[Point]) -> Iterator[Row]:
    """Return rows about what one more step costs the gate's process and its reader."""
    if len(points) < len("ab"):
        return
    first, last = (edge(points, key=lambda point: point.size) for edge in (min, max))
    spent = [one.called.own_cpu_seconds + one.called.reader_cpu_seconds for one in (first, last)]
    each = (spent[1] - spent[0]) / (last.size - first.size) * MEGA
    yield Row(
        what=f"one more of {last.size:,} steps: CPU time of gate and reading process",
        measured=f"{each:.0f} µs ({spent[0]:.1f} s to {spent[1]:.1f} s)",
        aim=f"≤ {STEP_MICROSECONDS} µs",
        met=each <= STEP_MICROSECONDS,
    )
    size = bytes_each(points)
    yield Row(
        what=f"one more of {last.size:,} steps: memory of the gate's process",
        measured=f"{size:,.0f} bytes",
        aim=f"≤ {STEP_BYTES} bytes",
        met=size <= STEP_BYTES,
    )


def measured_points(
    scene: Scene, name: str, workloads: Sequence[tuple[int, Workload]]
) -> tuple[list[Point], str]:
    """Make a call for each size, smallest first; stop at the first that gives no verdict.

    Returns the points and the reason for stopping, or an empty text.
    """
    points: list[Point] = []
    for size, workload in workloads:
        try:
            called = scene.calls(f"{name}-{len(points)}", workload, rounds=1)
        except CallError as fault:
            return points, f"{size:,}: {fault}"
        points.append(Point(size=size, called=called))
    return points, ""


def growth_table(heads: str, names: Sequence[str], points: Sequence[Point]) -> Iterator[str]:
    """Return a Markdown table with a row per call; `names` describe the sizes."""
    yield (
        f"| {heads} | call s | own s | gate's CPU s | reading process CPU s | gate's memory MB | "
        "reading process MB |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, point in zip(names, points, strict=False):
        one = point.called
        yield (
            f"| {name} | {one.seconds:.1f} | {one.own_seconds:.1f} | {one.own_cpu_seconds:.1f} | "
            f"{one.reader_cpu_seconds:.1f} | {one.own_bytes / MEGA:.0f} | "
            f"{one.reader_bytes / MEGA:.0f} |"
        )


def metrics_part(scene: Scene) -> tuple[list[Row], list[str]]:
    """Measure the growth with logged numbers: more metrics, more steps, and above the limit.

    Metrics and steps are varied separately, because a step costs more than another number in it.
    """
    rows: list[Row] = []
    table: list[str] = []
    for grid, what, each in (
        (BY_METRICS, "1 to 100 metrics, 10³ steps", "number"),
        (BY_STEPS, "1 metric, 10³ to 10⁵ steps", "step"),
    ):
        sizes = [(names, max(3, steps // scene.scale)) for names, steps in grid]
        workloads = [(names * steps, logging(names, steps)) for names, steps in sizes]
        points, failed = measured_points(scene, f"metrics-{each}", workloads)
        rows += growth_rows(what, each, points, failed)
        rows += step_rows(points) if each == "step" else ()
        words = [f"{names}, {steps:,} steps" for names, steps in sizes]
        table += list(growth_table("metrics, steps", words, points))[len("hr") * bool(table) :]
    return [*rows, beyond_row(scene)], table


def logging(names: int, steps: int) -> Workload:
    """Return a training that logs `names` metrics at each of `steps` steps."""
    words = (str(steps), str(names))
    return Workload(script=METRICS, words=words, steps=steps, own_metrics=True)


def beyond_row(scene: Scene) -> Row:
    """Check that more numbers than the gate accepts end in a message about that limit."""
    names, steps = BEYOND
    begun, told = time.perf_counter(), "a verdict"
    try:
        scene.calls("metrics-beyond", logging(names, steps // scene.scale), rounds=1)
    except CallError as fault:
        told = str(fault)
    seconds = time.perf_counter() - begun
    return Row(
        what=f"{names * steps // scene.scale:,} numbers, more than the gate takes",
        measured=f"after {seconds:.0f} s, the first training among them: {told}",
        aim="a message",
        met=LIMIT_TOLD in told if scene.scale == 1 else None,
    )


def state_part(scene: Scene) -> tuple[list[Row], list[str]]:
    """Measure the growth with the bytes of the model's state."""
    totals = [total // scene.scale for total in STATES]
    workloads = [
        (total, Workload(script=STATE, words=("3", str(total)), steps=3)) for total in totals
    ]
    points, failed = measured_points(scene, "state", workloads)
    rows = list(growth_rows("1 MB to 4 GB of state", "byte of state", points, failed))
    return rows, list(growth_table("state", [f"{total / MEGA:,g} MB" for total in totals], points))


def page(scene: Scene, parts: Sequence[str]) -> Iterator[str]:
    """Return the whole page, line by line as it is measured."""
    yield "# The gate's own time, on a CPU\n"
    yield from _about(scene)
    yield "\nTwo default runs alone and two strict ones beside each other would be 0.75 of four one"
    yield "after the other; each strict run also has a while alone, to be timed.\n"
    yield "## Aims\n"
    yield "| what | measured | aim | |"
    yield "|---|---|---|---|"
    tables: dict[str, list[str]] = {}
    for part, rows in (
        ("ratio", long_rows),
        ("digits", digits_rows),
        ("pull", pull_rows),
        ("own", own_rows),
    ):
        if part in parts:
            yield from (row.line for row in rows(scene))
    for part, measure in (("metrics", metrics_part), ("state", state_part)):
        if part in parts:
            rows_of_it, tables[part] = measure(scene)
            yield from (row.line for row in rows_of_it)
    for part, table in tables.items():
        yield f"\n## Growth with {part}\n"
        yield from table
    yield f"\nLoad of the machine at the end (1, 5, 15 minutes): {load()}."


def _about(scene: Scene) -> Iterator[str]:
    import torch  # noqa: PLC0415 - only for its version, after the options were read

    yield f"Written by `make bench-gate`; rounds: {scene.rounds}, in turns, the fastest of each"
    yield "side, and of each size in a table one call. A bare training is the same command by hand,"
    yield "with the one thread that the gate gives each run. *Own time* is what a call takes from"
    yield "start to exit besides the seconds in which at least one of its runs was going."
    if scene.scale > 1:
        yield f"\n**Durations and sizes are {scene.scale} times smaller than the aims mean.**"
    yield (
        f"\n{time.strftime('%Y-%m-%d')}. {processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"{platform.system()} {platform.machine()}; Python {platform.python_version()}, "
        f"torch {torch.__version__}; on {file_system(scene.folder)}. Load at the start: {load()}."
    )
    yield "\nOn ext4 without a journal it takes long to make files within minutes after others were"
    yield "removed (`recently_deleted` in the kernel's fs/ext4/ialloc.c); `TMPDIR` says where else."
    if os.getloadavg()[0] > QUIET_LOAD:
        yield "Others used the machine too: its ratios say more than its seconds."


def main() -> None:
    """Measure, print the page, and write it to `--out` if that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", type=int, default=1, help="everything so many times smaller")
    parser.add_argument("--image", default="", help="the image to measure a container with")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="repro-gate-bench-") as name:
        folder = Path(name)
        # the training's account must be able to enter: a temporary folder has mode 0700
        folder.chmod(0o755)
        scene = Scene(
            folder=folder, rounds=options.rounds, scale=options.scale, image=options.image
        )
        write_page(page(scene, options.parts or PARTS), options.out)


if __name__ == "__main__":
    main()
