from __future__ import annotations

import io
from dataclasses import replace

import pytest
from evidence_cases import manifest_of
from rich.console import Console

from gate.baseline.acceptance import FarFromPeers
from gate.baseline.entry import Baseline, BaselineEntry
from gate.commands.doctor import doctor_view
from gate.evidence.step_columns import StepDigests
from gate.isolation.modes import Isolation, IsolationMode
from gate.pipelines.doctor.health import CheckResult, DoctorReport
from gate.pipelines.doctor.machine_checks import (
    examined_baseline,
    examined_driver,
    examined_gpu,
    examined_isolation,
    examined_python,
    examined_shared_memory,
)
from gate.settings.gate_settings import GateSettings
from gate.settings.load import parse_settings
from gate.system.machine import Gpu, GpusSeen, TrainingSeen
from gate.training.environment import Environment

HERE = Environment(parts={"torch": "2.13.0"})
UUID = "GPU-8b9c1a2d-0000-1111-2222-333344445555"
HOST = GpusSeen(gpus=(Gpu(uuid=UUID, name="NVIDIA A", driver="580.1"),))
NO_GPU = GpusSeen(problem="nvidia-smi was not found")
CPU = TrainingSeen(
    parts={"python": "CPython 3.11.7", "torch": "2.13.0+cpu"}, shm_bytes=64 * 1024**2
)
CUDA = TrainingSeen(
    parts={"torch": "2.13.0+cu128", "driver": "580.1", "cuda": "12.8", "cudnn": "91002"},
    gpus=(f"NVIDIA A {UUID} (81,559 MiB)",),
)


def _settings(device: str) -> GateSettings:
    text = f"version: 1\ntrain: {{command: python t.py, max_steps: 2, device: {device}}}\n"
    return parse_settings(text.encode(), "repro-gate.yml")


def test_a_gpu_that_is_demanded_and_missing_fails_loudly() -> None:
    row = examined_gpu(_settings("cuda"), CPU, NO_GPU, None)
    assert row.health is CheckResult.FAIL
    assert row.found == "train.device is cuda, but no GPU was found: nvidia-smi was not found"
    assert "docs/gpu.md" in row.fix


def test_without_a_demand_the_cpu_is_said_to_be_used() -> None:
    row = examined_gpu(_settings("auto"), CPU, NO_GPU, None)
    assert row.health is CheckResult.OK
    assert row.found.endswith("train.device auto trains on the CPU")


def test_a_gpu_is_told_by_its_uuid_and_memory() -> None:
    row = examined_gpu(_settings("cuda"), CUDA, HOST, None)
    assert (row.health, row.found) == (CheckResult.OK, f"NVIDIA A {UUID} (81,559 MiB)")


@pytest.mark.parametrize(
    ("device", "health"), [("cuda", CheckResult.FAIL), ("auto", CheckResult.WARN)]
)
def test_a_gpu_that_torch_cannot_use_is_no_gpu(device: str, health: CheckResult) -> None:
    row = examined_gpu(_settings(device), CPU, HOST, None)
    assert (row.health, row.found) == (
        health,
        "NVIDIA A; the training's torch (2.13.0+cpu) is a build without CUDA",
    )
    assert row.fix.startswith("Install a build of torch for CUDA where the training runs.")


@pytest.mark.parametrize(
    ("host", "told"),
    [
        (replace(HOST, mps=True), "MPS runs"),
        (
            replace(HOST, gpus=(replace(HOST.gpus[0], compute_mode="Exclusive_Process"),)),
            "compute mode Exclusive_Process",
        ),
    ],
)
def test_a_gpu_that_another_process_may_take_is_a_warning(host: GpusSeen, told: str) -> None:
    row = examined_gpu(_settings("auto"), CUDA, host, None)
    assert row.health is CheckResult.WARN
    assert row.found.endswith(f"Another process may block the training from using it: {told}")
    assert "train.timeout_seconds" in row.fix


@pytest.mark.parametrize("mode", ["Default", "[N/A]", ""])
def test_a_shared_gpu_is_none(mode: str) -> None:
    host = replace(HOST, gpus=(replace(HOST.gpus[0], compute_mode=mode),))
    assert examined_gpu(_settings("auto"), CUDA, host, None).health is CheckResult.OK


def test_a_gpu_is_not_looked_for_when_the_cpu_is_wanted() -> None:
    row = examined_gpu(_settings("cpu"), CPU, HOST, None)
    assert (row.health, row.found) == (CheckResult.OK, "train.device is cpu: no GPU is used")


def test_versions_of_driver_and_libraries_are_told() -> None:
    row = examined_driver(_settings("cuda"), CUDA, HOST)
    assert row.found == "driver 580.1, CUDA 12.8 and cuDNN 91002 of torch"


def test_no_isolation_fails_on_a_runner_and_warns_elsewhere() -> None:
    none = Isolation(mode=IsolationMode.NONE, credentials=None, reason="not root")
    assert examined_isolation(none, on_runner=True).health is CheckResult.FAIL
    row = examined_isolation(none, on_runner=False)
    assert (row.health, row.found) == (CheckResult.WARN, "none: not root")


def test_python_and_torch_are_the_trainings_own() -> None:
    assert examined_python(CPU).found == "CPython 3.11.7, torch 2.13.0+cpu"
    broken = examined_python(TrainingSeen(problem="no torch", hint="Install torch"))
    assert (broken.health, broken.fix) == (CheckResult.FAIL, "Install torch")


def test_a_containers_default_shared_memory_is_a_warning() -> None:
    row = examined_shared_memory(CPU, None)
    assert row.health is CheckResult.WARN
    assert row.found == "64 MiB in /dev/shm: DataLoader workers may crash with SIGBUS"


def _entry(**parts: str) -> BaselineEntry:
    return BaselineEntry(
        commit="a" * 40,
        recorded_at="2026-11-21T12:00:00+00:00",
        training={},
        environment=Environment(parts=parts),
        metrics=(),
        steps=StepDigests(),
        checkpoint=manifest_of(weight=b"12345678"),
    )


def test_an_entry_of_this_very_environment_is_fine() -> None:
    entry = _entry(torch="2.13.0")
    row = examined_baseline(
        Baseline(entries=(entry,)), "b.json", entry, Environment(parts={"torch": "2.13.0"})
    )
    assert (row.health, row.found) == (
        CheckResult.OK,
        "b.json: has an entry for exactly this environment",
    )


def test_an_entry_that_is_far_from_its_peers_judges_nothing() -> None:
    far = FarFromPeers(peers=1, metric="loss")
    entry = _entry(torch="2.13.0").model_copy(update={"far": far})
    here = Environment(parts={"torch": "2.13.0"})
    row = examined_baseline(Baseline(entries=(entry,)), "b", entry, here)
    assert row.health is CheckResult.FAIL
    assert row.found == "b: the nearest entry is far from those of other environments"
    assert "until another call gives the same bits" in row.fix
    confirmed = entry.model_copy(update={"recordings": 2})
    row = examined_baseline(Baseline(entries=(confirmed,)), "b", confirmed, here)
    assert row.health is CheckResult.OK


def test_what_moved_is_named_with_what_it_was() -> None:
    entry = _entry(torch="2.12.0", cpu="A")
    seen = {"torch": "2.13.0", "cpu": "A", "driver": "580.1"}
    row = examined_baseline(Baseline(entries=(entry,)), "b.json", entry, Environment(parts=seen))
    assert row.health is CheckResult.WARN
    assert row.found == (
        "b.json: the closest entry differs in driver 580.1 (was none), torch 2.13.0 (was 2.12.0)"
    )


def test_an_entry_of_another_accelerator_cannot_judge() -> None:
    entry = _entry(device="NVIDIA H100")
    here = Environment(parts={"device": "cpu"})
    row = examined_baseline(Baseline(entries=(entry,)), "b.json", None, here, entry)
    assert (row.health, row.found) == (
        CheckResult.FAIL,
        "b.json: has no entry for cpu, only for NVIDIA H100",
    )


def test_another_experiment_cannot_be_judged() -> None:
    row = examined_baseline(
        Baseline(entries=(_entry(),)), "b.json", None, Environment(parts={"torch": "2.13.0"})
    )
    assert row.health is CheckResult.FAIL
    assert "recorded with another command, seed, step count or thread count" in row.found


def test_an_environment_that_is_not_known_is_said_to_be_so() -> None:
    entry = _entry()
    row = examined_baseline(Baseline(entries=(entry,)), "b.json", entry, Environment(parts={}))
    assert row.found == "b.json: 1 entries; this environment is unknown"


def test_hostile_text_of_the_trainings_python_is_shown_as_text() -> None:
    said = TrainingSeen(parts={"python": "[bold red]x\x1b[2J", "torch": "\u202egpj"})
    report = DoctorReport(version="0", examined=(examined_python(said),))
    out = io.StringIO()
    Console(file=out, width=100).print(doctor_view(report))
    assert "[bold red]x" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert "\u202e" not in out.getvalue()


def test_no_baseline_is_left_to_do() -> None:
    row = examined_baseline(None, ".repro-gate/baseline", None, Environment(parts={}))
    assert (row.health, row.found) == (
        CheckResult.TODO,
        ".repro-gate/baseline: no baseline is committed",
    )
    assert "baseline record" in row.fix


def test_the_advice_to_record_names_the_settings_that_the_call_names() -> None:
    row = examined_baseline(None, "b", None, Environment(parts={}), config="nlp/my gate.yml")
    assert row.fix.startswith("Run `repro-gate baseline record --config 'nlp/my gate.yml'` on ")
