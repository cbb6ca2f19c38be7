"""What a process says of its GPUs, on devices that are played."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from each_row import each_row
from played_cuda import GIB, PlayedCuda

from gate.harness import cuda
from gate.harness import cuda as devices
from gate.harness.lifecycle import attestation, environment_survey
from gate.harness.output import Problems
from gate.harness.settings import VARIABLES

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

Play = Callable[..., PlayedCuda]
Load = Callable[[str], object]
H100, SLICE = "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
SHOWN = "(compute capability 9.0, 132 multiprocessors, 80 GiB)"
FORMS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n": "550.54.15",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root)\n"
    "GCC version:  gcc version 14.2.0\n": "580.159.04",
    "NVRM version: NVIDIA UNIX Open Kernel x86_64 Kernel Module  590.48.01  Release Build\n": (
        "590.48.01"
    ),
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\n": (
        "580.95.05"
    ),
    "something else 123.4\n": "",
    "": "",
}


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    def played(names: tuple[str, ...], peaks: tuple[int, ...], **more: object) -> PlayedCuda:
        found = replace(PlayedCuda(names=names, peaks=peaks), **more)  # type: ignore[arg-type] # a test names what it plays
        monkeypatch.setattr(devices, "_cuda", found)
        monkeypatch.setattr(cuda, "_cuda", found)
        return found

    return played


@each_row(("text", "version"), FORMS.items())
def test_every_form_of_a_drivers_text_gives_its_version(
    tmp_path: Path, text: str, version: str
) -> None:
    about = tmp_path / "version"
    about.write_text(text)
    assert devices.driver_version(tmp_path / "absent", about) == version


def test_the_kernels_own_word_on_the_driver_comes_first(tmp_path: Path) -> None:
    module = tmp_path / "module"
    module.write_text("580.95.05\n")
    assert devices.driver_version(module, tmp_path / "absent") == "580.95.05"
    assert devices.driver_version(tmp_path / "no", tmp_path / "none") == ""


def test_a_rank_on_another_device_than_the_current_one_tells_its_own(play: Play) -> None:
    play(("NVIDIA A10", H100), (0, GIB))
    assert devices.device_summary() == f"{H100} {SHOWN}"
    assert [row["used"] for row in devices.device_facts()] == [False, True]


@pytest.mark.parametrize(
    ("names", "peaks", "told"),
    [
        ((H100,), (GIB,), f"{H100} {SHOWN}"),
        ((H100, H100), (GIB, GIB), f"2 x {H100} {SHOWN}"),
        ((H100, "NVIDIA A10", H100), (1, 1, 1), f"2 x {H100} {SHOWN}; NVIDIA A10 {SHOWN}"),
        ((H100, H100), (0, 0), f"{H100} {SHOWN}"),
        ((SLICE,), (GIB,), f"{SLICE} {SHOWN}"),
    ],
)
def test_all_devices_in_use_are_told_and_counted(
    play: Play, names: tuple[str, ...], peaks: tuple[int, ...], told: str
) -> None:
    play(names, peaks)
    assert devices.device_summary() == told


def test_another_allocator_is_not_asked_about_devices_that_are_not_in_use(play: Play) -> None:
    played = play((H100, "NVIDIA A10"), (GIB, 0), backend="cudaMallocAsync", current=1)
    assert devices.device_summary() == f"NVIDIA A10 {SHOWN}"
    assert played.asked == []


def test_the_last_bytes_of_a_memory_are_no_other_environment(play: Play) -> None:
    play((H100,), (GIB,))
    before = devices.device_summary()
    play((H100,), (GIB,), memory_bytes=80 * GIB - 3 * 1024**2)
    assert devices.device_summary() == before


def test_every_visible_device_is_attested_with_its_slice(play: Play) -> None:
    play((SLICE, H100), (GIB, 0))
    told = attestation.about_this_process(Problems())["devices"]
    assert isinstance(told, list)
    assert told[0] == {
        "index": 0,
        "name": SLICE,
        "capability": "9.0",
        "multiprocessors": 132,
        "memory_bytes": 80 * GIB - 5,
        "slice": "1g.10gb",
        "uuid": "uuid-0",
        "used": True,
    }
    assert (told[1]["slice"], told[1]["used"]) == ("", False)


def test_a_process_that_started_no_gpu_has_none() -> None:
    assert (devices.used(), devices.device_facts()) == ((), [])
    parts = environment_survey.parts(Problems())
    assert {parts[name] for name in ("cublas", "nccl", "driver", "variables")} == {"none"}


MAPS = (
    "7f1 r-xp 00 08:01 1 /venv/nvidia/cublas/lib/libcublasLt.so.13\n"
    "7f2 r-xp 00 08:01 2 /venv/nvidia/cublas/lib/libcublas.so.13\n"
    "7f3 r-xp 00 08:01 3 /opt/plugins/libnccl-tuner-ofi.so\n"
    "7f4 r--p 00 08:01 3 /opt/plugins/libnccl-tuner-ofi.so\n"
)


def played_library(path: str) -> SimpleNamespace:
    assert path == "/venv/nvidia/cublas/lib/libcublas.so.13"

    def answer(kind: int, value: ctypes.Array[ctypes.c_int]) -> int:
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = (13, 1, 0)[kind]
        return 0

    return SimpleNamespace(cublasGetProperty=answer)


def refusing_library(path: str) -> SimpleNamespace:
    raise OSError(path)


def test_the_cublas_that_is_loaded_tells_its_version() -> None:
    assert devices.cublas_version(MAPS, played_library) == "13.1.0"


@pytest.mark.parametrize(
    ("maps", "load"),
    [("", played_library), (MAPS, refusing_library), (MAPS, lambda _: SimpleNamespace())],
)
def test_a_cublas_that_cannot_be_asked_is_no_fault(
    maps: str, load: Callable[[str], object]
) -> None:
    assert devices.cublas_version(maps, load) == ""


def test_the_driver_itself_tells_the_newest_cuda_that_it_supports() -> None:
    def load(path: str) -> SimpleNamespace:
        assert path == "libcuda.so.1"
        return SimpleNamespace(cuDriverGetVersion=answer)

    def answer(value: ctypes.Array[ctypes.c_int]) -> int:
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = 13000
        return 0

    assert devices.newest_supported_version(load) == 13000


@pytest.mark.parametrize("load", [refusing_library, lambda _: SimpleNamespace()])
def test_a_machine_without_a_driver_supports_no_cuda(load: Callable[[str], object]) -> None:
    assert devices.newest_supported_version(load) == 0


def test_a_plugin_that_chooses_for_nccl_is_told(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play((H100,), (GIB,))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert devices.nccl_version(MAPS) == "2.29.7, libnccl-tuner-ofi.so"
    assert devices.nccl_version("") == "2.29.7"


@pytest.mark.parametrize(("ranks", "version"), [("2", "2.29.7"), ("1", "none")])
def test_nccl_is_a_part_of_the_environment_of_ranks_alone(
    play: Play, monkeypatch: pytest.MonkeyPatch, ranks: str, version: str
) -> None:
    play((H100,), (GIB,))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    parts = environment_survey.parts(Problems())
    assert parts["nccl"] == version
    assert parts["device"] == f"{H100} {SHOWN}"


MOVE_RESULTS = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLASLT_WORKSPACE_SIZE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "NCCL_PROTO",
    "NCCL_TUNER_PLUGIN",
)


def started(folder: Path, **environ: str) -> str:
    source = folder / "environ"
    source.write_bytes(b"".join(f"{name}={text}\0".encode() for name, text in environ.items()))
    return environment_survey.started_with(source)


@each_row("name", MOVE_RESULTS)
def test_a_variable_that_moves_results_is_a_part_of_the_environment(
    tmp_path: Path, name: str
) -> None:
    assert started(tmp_path, PATH="/bin", **{name: "1"}) == f"{name}=1"


@each_row("name", [*VARIABLES.values(), "NCCL_DEBUG", "CUDA_DEVICE_ORDER", "HOME"])
def test_knobs_talk_and_numbers_of_cards_are_no_part_of_it(tmp_path: Path, name: str) -> None:
    assert started(tmp_path, **{name: "1"}) == ""


def test_many_variables_are_told_by_a_digest_that_each_of_them_moves(tmp_path: Path) -> None:
    many = {f"NCCL_{number}": "x" * 40 for number in range(9)}
    told = started(tmp_path, **many)
    assert told.startswith("9 variables, SHA-256 ")
    assert len(told) < environment_survey.MAX_TEXT
    assert started(tmp_path, **{**many, "NCCL_8": "y"}) != told


def test_which_cards_were_shown_is_attested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    told = environment_survey.attested()
    assert (told["CUDA_DEVICE_ORDER"], told["NCCL_PROTO"]) == ("PCI_BUS_ID", "Simple")


@pytest.mark.torch
def test_what_the_script_sets_itself_is_its_code_and_no_other_environment(harness: Harness) -> None:
    script = (
        "import os\n"
        "os.environ['NCCL_PROTO'] = 'Simple'\n"
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(2))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(3):\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
    )
    left = harness.run(script, NVIDIA_TF32_OVERRIDE="1")
    assert left.document("summary")["environment"]["variables"] == "NVIDIA_TF32_OVERRIDE=1"
    assert left.document("process")["variables"]["NCCL_PROTO"] == "Simple"
    assert left.document("process")["devices"] == []
