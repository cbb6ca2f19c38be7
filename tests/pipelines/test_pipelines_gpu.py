"""A training that ran on the CPU because it could not use the machine's GPU: never in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from gate_bench import Bench, gate_call
from grouped import OneAfterTheOther
from played_training import SETTINGS, Project

from gate.errors import RunError
from gate.isolation.process_request import Processes, ProcessRequest, ProcessResult
from gate.pipelines.case import Gated
from gate.report.assembly import ReportLinks
from gate.report.comment import comment_text
from gate.system.machine import GpusSeen

HOST = GpusSeen(kernel=("NVIDIA H100",), problem="nvidia-smi was not found")
TRIED = {"built_for": "13.0", "supports": 0, "refusal": "", "hidden_by": "", "files": []}


@dataclass
class Probed(OneAfterTheOther):
    """Trainings as they are; the training's Python, asked for its GPU, answers as it is told."""

    real: Processes
    answer: dict[str, object] = field(default_factory=lambda: {"parts": {}, "tried": TRIED})
    asked: int = 0

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        if "-c" not in request.argv or "repro-gate-doctor" not in request.argv[2]:
            return self.real.run(request, on_line)
        self.asked += 1
        output = b"repro-gate-doctor:" + json.dumps(self.answer).encode()
        return ProcessResult(
            exit_code=0, timed_out=False, wall_seconds=0.1, output=output, output_bytes=len(output)
        )


def gated(bench: Bench, host: GpusSeen = HOST, **answer: object) -> tuple[Gated, Probed]:
    adapters = bench.adapters()
    probed = Probed(adapters.processes)
    probed.answer |= answer
    adapters = replace(adapters, processes=probed, gpus=lambda: host)
    return gate_call(bench.request(), adapters), probed


def settings_for(project: Project, device: str) -> None:
    text = SETTINGS.replace("train:\n", f"train:\n  device: {device}\n", 1)
    project.write("repro-gate.yml", text)
    project.commit()


def test_a_silent_cpu_is_the_first_warning_of_the_comment(bench: Bench) -> None:
    found, probed = gated(bench)
    finding = found.verdict.findings[0]
    assert finding.code == "gpu-unused"
    assert finding.message == (
        "the training ran on the CPU, although the machine has a GPU: NVIDIA H100; no GPU is "
        "visible where the training runs"
    )
    assert finding.remedy.startswith("docs/gpu.md has six ways to give a container one.")
    comment = comment_text(found.verdict, ReportLinks())
    shown, _, _ = comment.partition("<details>")
    first = shown.partition("> [!WARNING]\n")[2].splitlines()[0]
    assert first.startswith("> - `gpu-unused`: the training ran on the CPU")
    assert "NVIDIA H100" in first
    assert probed.asked == 1


def test_a_gpu_that_could_have_been_used_is_the_scripts_own_choice(bench: Bench) -> None:
    found, probed = gated(bench, gpus=[["NVIDIA H100", "uuid", 85_000_000_000]])
    assert "gpu-unused" not in {finding.code for finding in found.verdict.findings}
    assert probed.asked == 1


def test_without_a_gpu_in_the_machine_nobody_is_asked(bench: Bench) -> None:
    found, probed = gated(bench, GpusSeen(problem="nvidia-smi was not found"))
    assert "gpu-unused" not in {finding.code for finding in found.verdict.findings}
    assert probed.asked == 0


def test_a_cpu_that_is_meant_is_not_asked_about(bench: Bench, project: Project) -> None:
    settings_for(project, "cpu")
    found, probed = gated(bench)
    assert "gpu-unused" not in {finding.code for finding in found.verdict.findings}
    assert probed.asked == 0


def test_a_gpu_that_is_demanded_ends_the_gate_with_the_cause(
    bench: Bench, project: Project
) -> None:
    settings_for(project, "cuda")
    with pytest.raises(RunError) as caught:
        gated(bench)
    assert caught.value.message == (
        "run default-1: train.device is cuda, but the training ran on the CPU: NVIDIA H100; no "
        "GPU is visible where the training runs"
    )
    assert caught.value.hint.startswith("docs/gpu.md has six ways")
