from __future__ import annotations

from pathlib import Path

import pytest

from gate.system.machine import free_bytes, gpus_seen, parse_gpus

UUID = "GPU-8b9c1a2d-0000-1111-2222-333344445555"


def _tool(folder: Path, script: str) -> str:
    """A search path with an nvidia-smi that does as the script says."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_each_gpu_is_read_with_its_uuid() -> None:
    seen = parse_gpus(f"{UUID}, NVIDIA H200, 580.95.05, Default, Disabled\n")
    (gpu,) = seen.gpus
    assert (gpu.uuid, gpu.name, gpu.driver) == (UUID, "NVIDIA H200", "580.95.05")
    assert (gpu.shared, gpu.mig) == (True, False)


@pytest.mark.parametrize("mode", ["Exclusive_Process", "Prohibited"])
def test_a_gpu_of_one_process_and_one_cut_into_slices_are_told(mode: str) -> None:
    (gpu,) = parse_gpus(f"{UUID}, NVIDIA H200, 580.95.05, {mode}, Enabled\n").gpus
    assert (gpu.compute_mode, gpu.shared, gpu.mig) == (mode, False, True)


@pytest.mark.parametrize(
    "text", ["no devices", f"{UUID}, A", "GPU-;id, A, 1, a, b", "\x1b[31m, , , ,"]
)
def test_an_answer_that_is_not_understood_is_a_problem(text: str) -> None:
    seen = parse_gpus(text)
    assert seen.gpus == ()
    assert seen.problem.startswith("nvidia-smi gave an unexpected answer: ")
    assert seen.problem.isprintable()


def test_no_row_is_no_gpu() -> None:
    assert parse_gpus("").problem == "nvidia-smi lists no GPU"


def test_a_machine_without_the_tool_says_so(tmp_path: Path) -> None:
    assert gpus_seen(str(tmp_path)).problem == "nvidia-smi was not found"


def test_the_tools_own_words_are_kept_when_it_fails(tmp_path: Path) -> None:
    path = _tool(tmp_path, "echo 'Failed to initialize NVML: Unknown Error'; exit 255")
    assert gpus_seen(path).problem == "nvidia-smi: Failed to initialize NVML: Unknown Error"


def test_the_tool_gets_no_variable_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "canary")
    path = _tool(tmp_path, f'echo "{UUID}, ${{GITHUB_TOKEN:-none}}, 580, Default, Disabled"')
    assert gpus_seen(path).gpus[0].name == "none"


def test_the_tool_finds_its_library_where_the_caller_does(tmp_path: Path) -> None:
    path = _tool(tmp_path, f'echo "{UUID}, ${{LD_LIBRARY_PATH:-none}}, 580, Default, Disabled"')
    assert gpus_seen(path, "/usr/local/nvidia/lib64").gpus[0].name == "/usr/local/nvidia/lib64"
    assert gpus_seen(path).gpus[0].name == "none"


def test_a_container_without_the_tool_still_sees_what_the_kernel_knows(tmp_path: Path) -> None:
    for name in ("0000:17:00.0", "0000:65:00.0"):
        folder = tmp_path / "driver/nvidia/gpus" / name
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 9\n")
    seen = gpus_seen(str(tmp_path), proc=tmp_path)
    assert seen.names == ("NVIDIA H100 80GB HBM3",) * 2
    assert (seen.gpus, seen.mps) == ((), False)


@pytest.mark.parametrize(("name", "runs"), [("nvidia-cuda-mps", True), ("nvidia-smi", False)])
def test_a_server_that_shares_gpus_is_seen(
    tmp_path: Path,
    name: str,
    runs: bool,  # noqa: FBT001 - a column of the table
) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/comm").write_text(f"{name}\n")
    assert gpus_seen(str(tmp_path), proc=tmp_path).mps is runs


def test_room_is_told_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") > 0
