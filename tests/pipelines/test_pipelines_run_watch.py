"""How far runs have come: what a person sees, and what a training can do to it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from each_row import each_row

from gate.pipelines.run_watch import TAIL_BYTES, LivingRun, RunWatch, step_in
from gate.system.files.files import LocalFiles

FILE = "steps-r0-12.jsonl"
FILES = LocalFiles()


@dataclass
class Seconds:
    """A clock that is set by hand."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def at(folder: Path, step: int) -> None:
    (folder / FILE).write_text(
        "".join(f'{{"step": {one}, "loss": 1.5}}\n' for one in range(1, step + 1))
    )


def one(folder: Path, begun: float = 0.0) -> LivingRun:
    return LivingRun(out=folder, begun_seconds=begun, max_steps=20)


def test_a_series_says_which_run_which_step_and_how_long_still(tmp_path: Path) -> None:
    clock = Seconds()
    watch = RunWatch(FILES, clock)
    watch.series(4)
    assert watch.words([one(tmp_path)]) == "run 1 of 4"
    at(tmp_path, 1)
    clock.now = 10.0
    assert watch.words([one(tmp_path)]) == "run 1 of 4, step 1 of 20"
    at(tmp_path, 11)
    clock.now = 20.0
    # nine steps of a second, then three runs of 29 seconds
    assert watch.words([one(tmp_path)]) == "run 1 of 4, step 11 of 20, about 95 s left"


def test_runs_side_by_side_are_told_by_the_slower(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for folder, step in ((fast, 9), (slow, 3)):
        folder.mkdir()
        at(folder, step)
    watch = RunWatch(FILES, Seconds())
    watch.series(4)
    watch.ended(1, 30.0)
    assert watch.words([one(fast), one(slow)]) == "runs 2 to 3 of 4, step 3 of 20"


def test_minutes_are_enough_for_a_long_wait(tmp_path: Path) -> None:
    clock = Seconds()
    watch = RunWatch(FILES, clock)
    at(tmp_path, 1)
    watch.words([one(tmp_path)])
    at(tmp_path, 2)
    clock.now = 60.0
    assert watch.words([one(tmp_path)]) == "step 2 of 20, about 18 min left"


def test_more_runs_than_were_announced_have_no_number(tmp_path: Path) -> None:
    watch = RunWatch(FILES, Seconds())
    watch.series(1)
    watch.ended(1, 1.0)
    assert watch.words([one(tmp_path)]) == ""


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"step": 9}\n' + b"x" * TAIL_BYTES)
    assert step_in(FILES, tmp_path) == 0
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"a": 1, "step": 12, "loss": 2}\n')
    assert step_in(FILES, tmp_path) == 12


@each_row(
    "text", ["", '{"step": -1}', '{"step": "\x1b[31m"}', '{"step": 99999999999}', "\x00" * 99]
)
def test_what_is_no_step_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert step_in(FILES, tmp_path) == 0


def test_a_link_a_fifo_or_no_folder_is_read_as_nothing(tmp_path: Path) -> None:
    assert step_in(FILES, tmp_path / "none") == 0
    at(tmp_path, 3)
    (tmp_path / "steps-r0-13.jsonl").symlink_to(tmp_path / FILE)
    assert step_in(FILES, tmp_path) == 0
    (tmp_path / "steps-r0-13.jsonl").unlink()
    os.mkfifo(tmp_path / "steps-r0-14.jsonl")
    assert step_in(FILES, tmp_path) == 0


def test_a_step_beyond_the_last_is_the_last(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"step": 999999999}\n')
    assert RunWatch(FILES, Seconds()).words([one(tmp_path)]) == "step 20 of 20"
