from __future__ import annotations

from pathlib import Path

import pytest
from evidence_cases import settings_of

from gate.execution.child_environment import child_environment, path_with_interpreter
from gate.execution.launch import run_folders
from gate.records.runs import RunMode
from gate.records.settings import Device, GateSettings

FOLDERS = run_folders(Path("/run"))
HOST = {
    "PATH": "/bin",
    "GITHUB_TOKEN": "secret",
    "INPUT_SIGNING_KEY": "secret",
    "ACTIONS_RUNTIME_TOKEN": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "DATA_DIR": "/data",
    "HOME": "/root",
    "PYTHONPATH": "/elsewhere",
}


def _environment(
    mode: RunMode = RunMode.STRICT, settings: GateSettings | None = None
) -> dict[str, str]:
    return child_environment(mode, settings or settings_of(), FOLDERS, HOST)


def _train(**keys: object) -> GateSettings:
    return settings_of(train={"command": ("python", "train.py"), "max_steps": 3, **keys})


def test_nothing_of_the_host_comes_along_but_what_is_named() -> None:
    variables = _environment()
    assert "secret" not in variables.values()
    assert (variables["PATH"], variables["NVIDIA_VISIBLE_DEVICES"]) == ("/bin", "all")
    assert variables["HOME"] == "/run/home"
    assert variables["PYTHONPATH"] == "/run/guest"


def test_what_must_be_set_before_the_start_is_set() -> None:
    variables = _environment()
    assert variables["PYTHONHASHSEED"] == "42"
    assert variables["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "1"


def test_default_mode_gets_seeds_and_threads_only() -> None:
    strict, default = _environment(), _environment(RunMode.DEFAULT)
    assert strict.keys() - default.keys() == {
        "CUBLAS_WORKSPACE_CONFIG",
        "TORCHINDUCTOR_DETERMINISTIC",
        "FLASH_ATTENTION_DETERMINISTIC",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        "NCCL_ALGO",
    }
    assert default["REPRO_GATE_MODE"] == "default"


def test_the_users_own_variables_are_kept_and_passed() -> None:
    settings = _train(env={"LR": "0.1", "PYTHONPATH": "src"}, pass_env=("DATA_DIR", "ABSENT"))
    variables = _environment(settings=settings)
    assert (variables["LR"], variables["DATA_DIR"]) == ("0.1", "/data")
    assert variables["PYTHONPATH"] == "/run/guest:src"
    assert "ABSENT" not in variables


def test_the_cpu_can_be_asked_for() -> None:
    settings = _train(device=Device.CPU)
    assert _environment(settings=settings)["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("path", "beside_torch", "expected"),
    [
        ("/usr/bin", True, "/venv/bin:/usr/bin"),
        ("/usr/bin", False, "/usr/bin"),
        ("/venv/bin:/usr/bin", True, "/venv/bin:/usr/bin"),
        ("", True, "/venv/bin"),
    ],
)
def test_the_gates_python_comes_first_only_beside_torch(
    path: str,
    beside_torch: bool,  # noqa: FBT001 - a column of the table
    expected: str,
) -> None:
    found = path_with_interpreter(path, Path("/venv/bin/python"), beside_torch=beside_torch)
    assert found == expected
