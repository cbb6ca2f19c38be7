from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from each_row import each_row
from evidence_cases import settings_of

from gate.isolation.modes import Isolation, IsolationMode
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.processes import LocalProcesses
from gate.system.files.files import LocalFiles
from gate.system.machine import DeviceFile, TrainingSeen
from gate.training.probe import probe_training

NOBODY = Isolation(mode=IsolationMode.NONE, credentials=None, reason="a test")


class Answering:
    """A process runner whose processes print one text after the other."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers = list(answers)
        self.requests: list[ProcessRequest] = []

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        del on_line
        self.requests.append(request)
        code, output = self.answers.pop(0)
        return ProcessResult(
            exit_code=code,
            timed_out=code < 0,
            wall_seconds=0.1,
            output=output,
            output_bytes=len(output),
        )


def _probe(folder: Path, *answers: tuple[int, bytes], command: str = "python") -> TrainingSeen:
    settings = settings_of(train={"command": (command, "train.py"), "max_steps": 1})
    (folder / "run").mkdir(exist_ok=True)
    return probe_training(
        settings, NOBODY, folder / "run", LocalFiles(), Answering(*answers), {"PATH": "/bin"}
    )


def test_the_answer_is_found_among_other_output(tmp_path: Path) -> None:
    answer = b'a warning\nrepro-gate-doctor:{"parts": {"torch": "2.13.0"}, "shm_bytes": 7}\nbye\n'
    seen = _probe(tmp_path, (0, answer))
    assert (seen.parts, seen.gpus, seen.shm_bytes) == ({"torch": "2.13.0"}, (), 7)


def test_a_python_without_torch_is_told_with_what_to_do(tmp_path: Path) -> None:
    seen = _probe(tmp_path, (1, b"ModuleNotFoundError: No module named 'torch'\n"))
    assert seen.problem == "its Python failed: ModuleNotFoundError: No module named 'torch'"
    assert seen.hint.startswith("Install torch where the training runs")


def test_a_launcher_is_asked_through_the_python_beside_it(tmp_path: Path) -> None:
    seen = _probe(tmp_path, (127, b""), (0, b'repro-gate-doctor:{"parts": {}}'), command="torchrun")
    assert seen.problem == ""


def test_no_python_at_all_is_a_problem(tmp_path: Path) -> None:
    seen = _probe(tmp_path, (127, b""), command="python3.9")
    assert seen.problem == "python3.9: not found where the training runs"


def test_no_answer_in_time_is_a_problem(tmp_path: Path) -> None:
    assert _probe(tmp_path, (-9, b"")).problem == "its Python timed out after 180 s"


@each_row("said", [b"[1]", b"{", b'{"parts": 3', b"[" * 5000, b'{"a": NaN}'])
def test_a_hostile_answer_is_refused(tmp_path: Path, said: bytes) -> None:
    seen = _probe(tmp_path, (0, b"repro-gate-doctor:" + said))
    assert seen.problem.startswith("its Python gave an unexpected answer")


def test_a_hostile_answer_of_the_right_form_is_bounded(tmp_path: Path) -> None:
    said = '{"parts": {"torch": "%s"}, "gpus": %s, "shm_bytes": "many"}'
    names = "[" + ",".join(['["x", "y", 1]', '"z"'] * 500) + "]"
    seen = _probe(tmp_path, (0, b"repro-gate-doctor:" + (said % ("y" * 9000, names)).encode()))
    assert (len(seen.parts["torch"]), len(seen.gpus), seen.shm_bytes) == (200, 32, None)


@pytest.mark.parametrize(
    "tried",
    [
        3,
        {"supports": -1, "files": 7, "built_for": ["x"]},
        {"supports": 10**30, "files": [["/dev/nvidia0", "rw", 0, ""], [1], None]},
    ],
)
def test_what_it_says_of_a_gpu_is_taken_as_far_as_it_has_the_form(
    tmp_path: Path, tried: object
) -> None:
    seen = _probe(tmp_path, (0, b"repro-gate-doctor:" + json.dumps({"tried": tried}).encode()))
    assert (seen.tried.supports, seen.tried.files, seen.problem) == (0, (), "")


def test_a_gpu_is_told_as_the_settings_name_it(tmp_path: Path) -> None:
    gpus = [["NVIDIA H100", "ab", 80 * 1024**3], ["NVIDIA H100 MIG 1g.10gb", "cd", 10 * 1024**3]]
    seen = _probe(tmp_path, (0, b"repro-gate-doctor:" + json.dumps({"gpus": gpus}).encode()))
    assert seen.gpus == (
        "NVIDIA H100 GPU-ab (81,920 MiB)",
        "NVIDIA H100 MIG 1g.10gb MIG-cd (10,240 MiB)",
    )


def test_what_it_says_of_a_gpu_is_one_bounded_line(tmp_path: Path) -> None:
    tried = {
        "refusal": "first\n\x1b[31msecond " + "x" * 900,
        "files": [["/dev/nvidia0", 432, 44, "no"]],
    }
    seen = _probe(tmp_path, (0, b"repro-gate-doctor:" + json.dumps({"tried": tried}).encode()))
    assert seen.tried.refusal.startswith("first second xxx")
    assert len(seen.tried.refusal) <= 200
    assert seen.tried.files == (DeviceFile(path="/dev/nvidia0", mode=0o660, gid=44, refusal="no"),)


PLAYED = """
import sys
from types import SimpleNamespace
import torch
def refuse(): raise RuntimeError("The NVIDIA driver on your system is too old (found 12040).")
torch.version.cuda = "13.0"
torch.cuda.init = {init}
torch.cuda.device_count = lambda: 1
torch.zeros = lambda *_, device: None
torch.cuda.get_device_properties = lambda index: SimpleNamespace(
    name="NVIDIA H100 MIG 1g.10gb", uuid="ab", total_memory=10 * 1024**3
)
import ctypes
REAL = ctypes.CDLL
def answer(version):
    version._obj.value = 12040
    return 0
def load(name, *rest, **more):
    driver = SimpleNamespace(cuDriverGetVersion=answer)
    return driver if name == "libcuda.so.1" else REAL(name, *rest, **more)
ctypes.CDLL = load
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("init", "gpus", "refusal"),
    [
        ("refuse", (), "The NVIDIA driver on your system is too old (found 12040)."),
        ("lambda: None", ("NVIDIA H100 MIG 1g.10gb MIG-ab (10,240 MiB)",), ""),
    ],
)
def test_torchs_own_words_come_from_where_trainings_run(
    tmp_path: Path, init: str, gpus: tuple[str, ...], refusal: str
) -> None:
    class Playing(LocalProcesses):
        def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
            python, option, program, *rest = request.argv
            played = PLAYED.format(init=init) + program
            return super().run(replace(request, argv=(python, option, played, *rest)), on_line)

    settings = settings_of(train={"command": (sys.executable, "train.py"), "max_steps": 1})
    (tmp_path / "run").mkdir()
    host = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "-1"}
    seen = probe_training(settings, NOBODY, tmp_path / "run", LocalFiles(), Playing(), host)
    assert (seen.problem, seen.gpus, seen.tried.refusal) == ("", gpus, refusal)
    assert (seen.tried.built_for, seen.tried.supports) == ("13.0", 12040)
    assert seen.tried.hidden_by == "CUDA_VISIBLE_DEVICES=-1"
    assert seen.parts["device"] == "cpu"


def test_the_harness_does_not_watch_and_nothing_of_ours_is_handed_on(tmp_path: Path) -> None:
    processes = Answering((0, b"repro-gate-doctor:{}"))
    (tmp_path / "run").mkdir()
    host = {"PATH": "/bin", "GITHUB_TOKEN": "canary"}
    settings = settings_of(train={"command": ("python", "train.py"), "max_steps": 1})
    probe_training(settings, NOBODY, tmp_path / "run", LocalFiles(), processes, host)
    env = processes.requests[0].env
    assert not [name for name in env if name.startswith(("REPRO_GATE_", "GITHUB_"))]
    assert env["PYTHONHASHSEED"] == "42"
