"""A run is ended inside the save of its checkpoint at the byte that was asked for, or says why."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from harness_runs import HarnessRuns
from torch_processes import Ended, run_script

pytestmark = pytest.mark.torch
AT = 4
SCRIPT = """\
import io, os, pickle, threading, torch
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.AdamW(model.parameters())
os.makedirs("out")
for step in range(1, 100):
    optimizer.zero_grad()
    model(torch.randn(4, 32)).square().mean().backward()
    optimizer.step()
    if step % 2 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        SAVE
"""
IN_PLACE = 'torch.save(state, "out/last.pt")'
LEGACY = 'torch.save(state, "out/last.pt", _use_new_zipfile_serialization=False)'
STREAM = 'with open("out/last.pt", "wb") as file: torch.save(state, file)'
RENAMED = 'torch.save(state, "out/new"); os.replace("out/new", "out/last.pt")'


def _run(runs: HarnessRuns, save: str, point: str = "middle") -> tuple[Ended, Path, dict[str, Any]]:
    place = runs.runs / f"killed-{len(list(runs.runs.iterdir()))}"
    (place / "told").mkdir(parents=True)
    (place / "script.py").write_text(SCRIPT.replace("SAVE", save), "utf-8")
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(runs.folder),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "REPRO_GATE_OUT": str(place / "told"),
        "REPRO_GATE_TREE": str(place),
        "REPRO_GATE_MODE": "strict",
        "REPRO_GATE_OBSERVE": "off",
        "REPRO_GATE_SEED": "42",
        "REPRO_GATE_MAX_STEPS": "12",
        "REPRO_GATE_THREADS": "1",
        "REPRO_GATE_PREEMPT_STEP": str(AT),
        "REPRO_GATE_PREEMPT_PATH": str(place / "out" / "last.pt"),
        "REPRO_GATE_KILL_SAVE": point,
    }
    ended = run_script(place, variables)
    (told,) = (json.loads(path.read_text("ascii")) for path in place.glob("told/kill-*.json"))
    return ended, place / "out", told


@pytest.mark.parametrize("point", ["first-byte", "middle", "last-byte"])
@pytest.mark.parametrize("save", [IN_PLACE, LEGACY, STREAM], ids=["zip", "legacy", "stream"])
def test_the_kernel_ends_it_at_that_very_byte(runs: HarnessRuns, save: str, point: str) -> None:
    ended, out, told = _run(runs, save, point)
    assert ended.code == -signal.SIGXFSZ
    whole = told["size_bytes"]
    assert told["byte"] == {"first-byte": 1, "middle": whole // 2, "last-byte": whole - 1}[point]
    assert (out / "last.pt").stat().st_size == told["byte"]
    assert (told["step"], told["line"], told["had_one"], told["why"]) == (AT, 11, True, "")


def test_a_save_under_another_name_is_known_by_what_became_of_an_earlier_one(
    runs: HarnessRuns,
) -> None:
    ended, out, told = _run(runs, RENAMED)
    assert ended.code == -signal.SIGXFSZ
    assert told["path"] == "out/new"
    assert (out / "new").stat().st_size == told["byte"]
    # the old one is as it was
    assert (out / "last.pt").stat().st_size == told["size_bytes"]


@pytest.mark.parametrize(("name", "target"), [("{}.pt", "last.pt"), ("{}.new", "last.new")])
def test_of_two_files_that_one_line_saves_the_checkpoint_is_the_one(
    runs: HarnessRuns, name: str, target: str
) -> None:
    written = [name.format(one) for one in ("best", "last")]
    renamed = 'os.replace(f"out/{one}", "out/" + one.replace(".new", ".pt"))'
    _, out, told = _run(runs, f'for one in {written}: torch.save(state, f"out/{{one}}"); {renamed}')
    assert told["path"] == f"out/{target}"
    assert (out / target).stat().st_size == told["byte"]


def test_what_this_run_saved_before_is_told_by_whatever_name(runs: HarnessRuns) -> None:
    kept = f'os.path.exists("out/last.pt") and os.replace("out/last.pt", "out/old"); {IN_PLACE}'
    _, _, told = _run(runs, kept)
    assert told["beside"] == ["old"]


IN_MEMORY = 'buffer = io.BytesIO(); torch.save(state, buffer); open("out/last.pt", "wb").close()'
IN_THREAD = f"one = threading.Thread(target=lambda: {IN_PLACE}); one.start(); one.join()"


@pytest.mark.parametrize(
    ("save", "why"),
    [
        (f"if step == 2: {IN_PLACE}", "torch.save was not called between step 4 and the next"),
        (IN_MEMORY, "torch.save wrote to memory (script.py:11), and nothing shows"),
        (IN_THREAD, "torch.save runs in a thread beside the training"),
        ('torch.save(state, "out/other.pt")', "torch.save wrote to 'other.pt' (script.py:11)"),
    ],
    ids=["never", "memory", "thread", "elsewhere"],
)
def test_a_save_that_cannot_be_interrupted_is_left_alone_and_told(
    runs: HarnessRuns, save: str, why: str
) -> None:
    ended, _, told = _run(runs, save)
    # as a preemption ends it, with the next update
    assert ended.code == -signal.SIGTERM
    assert told["why"].startswith(why)
