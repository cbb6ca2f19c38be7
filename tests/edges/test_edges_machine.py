from __future__ import annotations

from pathlib import Path

import pytest

from gate.edges.machine import free_bytes, gpus_seen, parse_gpus

UUID = "GPU-8b9c1a2d-0000-1111-2222-333344445555"


def _tool(folder: Path, script: str) -> str:
    """A search path with an nvidia-smi that does as the script says."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_each_gpu_is_read_with_its_uuid() -> None:
    seen = parse_gpus(f"{UUID}, NVIDIA H200, 580.95.05, 143771\n")
    (gpu,) = seen.gpus
    assert (gpu.uuid, gpu.name, gpu.driver, gpu.memory_mib) == (
        UUID,
        "NVIDIA H200",
        "580.95.05",
        143771,
    )


def test_memory_that_the_driver_does_not_tell_is_none() -> None:
    assert parse_gpus(f"{UUID}, NVIDIA A, 580, [N/A]").gpus[0].memory_mib == 0


@pytest.mark.parametrize("text", ["no devices", f"{UUID}, A", "GPU-;id, A, 1, 2", "\x1b[31m, , ,"])
def test_an_answer_that_is_not_understood_is_a_problem(text: str) -> None:
    seen = parse_gpus(text)
    assert seen.gpus == ()
    assert seen.problem.startswith("nvidia-smi answered something else: ")
    assert seen.problem.isprintable()


def test_no_row_is_no_gpu() -> None:
    assert parse_gpus("").problem == "nvidia-smi lists no GPU"


def test_a_machine_without_the_tool_says_so(tmp_path: Path) -> None:
    assert gpus_seen(str(tmp_path)).problem == "nvidia-smi is not there"


def test_the_tools_own_words_are_kept_when_it_fails(tmp_path: Path) -> None:
    path = _tool(tmp_path, "echo 'Failed to initialize NVML: Unknown Error'; exit 255")
    assert gpus_seen(path).problem == "nvidia-smi: Failed to initialize NVML: Unknown Error"


def test_the_tool_gets_no_variable_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "canary")
    path = _tool(tmp_path, f'echo "{UUID}, ${{GITHUB_TOKEN:-none}}, 580, 1"')
    assert gpus_seen(path).gpus[0].name == "none"


def test_room_is_told_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") > 0
