from __future__ import annotations

from pathlib import Path

import pytest
from evidence_cases import settings_of

from gate.settings.gate_settings import Device, GateSettings
from gate.settings.knobs import ALL_KNOBS, STRICT_KNOBS, KnobSet, PricedKnob
from gate.training.child_environment import child_environment, path_with_interpreter
from gate.training.launch import run_folders
from gate.training.runs import PlannedRun, RunMode

FOLDERS = run_folders(Path("/run"))
HOST = {
    "PATH": "/bin",
    "GITHUB_TOKEN": "secret",
    "INPUT_SIGNING_KEY": "secret",
    "REPRO_GATE_PASSPHRASE": "secret",
    "REPRO_GATE_PKCS11_PIN": "secret",
    "VAULT_TOKEN": "secret",
    "ACTIONS_RUNTIME_TOKEN": "secret",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "secret",
    "ACTIONS_ID_TOKEN_REQUEST_URL": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "REPRO_GATE_REGISTRY_USER": "secret",
    "REPRO_GATE_REGISTRY_PASSWORD": "secret",
    "MLFLOW_TRACKING_TOKEN": "secret",
    "MLFLOW_TRACKING_USERNAME": "secret",
    "MLFLOW_TRACKING_PASSWORD": "secret",
    "DOCKER_CONFIG": "secret",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "NVIDIA_TF32_OVERRIDE": "1",
    "NCCL_PROTO": "LL",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_VISIBLE_DEVICES": "1",
    "DATA_DIR": "/data",
    "HOME": "/root",
    "PYTHONPATH": "/elsewhere",
}


def _environment(
    mode: RunMode = RunMode.STRICT,
    settings: GateSettings | None = None,
    *,
    knobs: KnobSet | None = None,
    keep_values: bool = False,
) -> dict[str, str]:
    planned = PlannedRun(label="strict-1", mode=mode, knobs=knobs, keep_values=keep_values)
    return child_environment(planned, settings or settings_of(), FOLDERS, HOST)


def _train(**keys: object) -> GateSettings:
    return settings_of(train={"command": ("python", "train.py"), "max_steps": 3, **keys})


def test_seed_and_steps_of_the_settings_reach_the_harness() -> None:
    told = _environment(settings=_train(seed=7, max_steps=9))
    assert (told["REPRO_GATE_SEED"], told["REPRO_GATE_MAX_STEPS"]) == ("7", "9")
    assert told["PYTHONHASHSEED"] == "7"


def test_the_harness_is_told_what_to_allow_and_what_to_look_for() -> None:
    settings = settings_of(determinism={"allow_operators": ("put_", "median CUDA")})
    variables = _environment(RunMode.AUDIT, settings)
    assert variables["REPRO_GATE_ALLOW"] == "put_;median CUDA"
    assert "module:flash_attn" in variables["REPRO_GATE_WATCH"].split(";")
    assert variables["REPRO_GATE_MODE"] == "audit"
    assert variables["TORCHINDUCTOR_DETERMINISTIC"] == "1"
    assert _environment()["REPRO_GATE_ALLOW"] == ""


def test_nothing_of_the_host_comes_along_but_what_is_named() -> None:
    variables = _environment()
    assert "secret" not in variables.values()
    assert (variables["PATH"], variables["NVIDIA_VISIBLE_DEVICES"]) == ("/bin", "all")
    assert variables["HOME"] == "/run/home"
    assert variables["PYTHONPATH"] == "/run/harness"


def test_a_hosts_variable_that_moves_results_does_not_come_along_by_itself() -> None:
    variables = _environment()
    assert not {"NVIDIA_TF32_OVERRIDE", "NCCL_PROTO", "PYTORCH_ALLOC_CONF"} & variables.keys()
    passed = _environment(settings=_train(pass_env=("NVIDIA_TF32_OVERRIDE",)))
    assert passed["NVIDIA_TF32_OVERRIDE"] == "1"


def test_what_says_which_card_is_meant_comes_along_as_a_whole() -> None:
    variables = _environment()
    assert variables["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert (variables["CUDA_DEVICE_ORDER"], variables["CUDA_VISIBLE_DEVICES"]) == (
        "PCI_BUS_ID",
        "1",
    )


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
    assert variables["PYTHONPATH"] == "/run/harness:src"
    assert "ABSENT" not in variables


def test_the_cpu_can_be_asked_for() -> None:
    settings = _train(device=Device.CPU)
    assert _environment(settings=settings)["CUDA_VISIBLE_DEVICES"] == ""


def test_strict_mode_sets_every_priced_knob_but_the_fill() -> None:
    strict = _environment()["REPRO_GATE_KNOBS"].split(";")
    assert {"deterministic_algorithms=on", "cudnn_benchmark=off", "memory_fill=off"} <= set(strict)
    default = _environment(RunMode.DEFAULT)["REPRO_GATE_KNOBS"].split(";")
    assert {"deterministic_algorithms=keep", "memory_fill=keep"} <= set(default)


def test_a_knob_that_is_taken_out_takes_its_variable_along() -> None:
    variables = _environment(knobs=STRICT_KNOBS - {PricedKnob.CUBLAS_WORKSPACE})
    assert "CUBLAS_WORKSPACE_CONFIG" not in variables
    assert "cublas_workspace=keep" in variables["REPRO_GATE_KNOBS"].split(";")
    assert variables["TORCHINDUCTOR_DETERMINISTIC"] == "1"


def test_the_fill_can_be_priced() -> None:
    assert "memory_fill=on" in _environment(knobs=ALL_KNOBS)["REPRO_GATE_KNOBS"].split(";")


def test_torch_warns_where_the_gate_itself_counts_or_refuses() -> None:
    warns = "deterministic_algorithms=warn"
    allowing = settings_of(determinism={"allow_operators": ("put_",)})
    assert warns in _environment(settings=allowing)["REPRO_GATE_KNOBS"].split(";")
    assert warns in _environment(RunMode.AUDIT)["REPRO_GATE_KNOBS"].split(";")
    assert warns not in _environment(RunMode.DEFAULT, allowing)["REPRO_GATE_KNOBS"].split(";")


def test_only_a_run_whose_values_are_kept_is_asked_for_gradients() -> None:
    assert _environment(keep_values=True)["REPRO_GATE_NOISE"] == "1"
    assert "REPRO_GATE_NOISE" not in _environment()


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
