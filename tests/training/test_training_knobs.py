"""Knobs as variables of a run: what each profile sets, what of the user's is kept or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from each_row import each_row
from evidence_cases import settings_of

from gate.errors import ExitCode, SettingsError
from gate.settings.knobs import BY_NAME, KNOBS, OFF, Acts, Profile
from gate.settings.train_sections import OnOverride
from gate.training.child_environment import child_environment
from gate.training.launch import run_folders
from gate.training.runs import PlannedRun, RunMode

FOLDERS = run_folders(Path("/run"))
VARIABLES = [knob for knob in KNOBS if knob.acts is Acts.ENVIRONMENT]
# A value of the user's that keeps what the knob is for, and one that does not.
VALID = {
    "hash_seed": "7",
    "omp_threads": "4",
    "omp_dynamic": "false",
    "mkl_threads": "2",
    "mkl_dynamic": "false",
    "cublas_workspace": ":16:8",
    "inductor_deterministic": "1",
    "flash_attention": "1",
    "transformer_engine": "0",
    "nccl_algorithm": "ring,CollnetDirect",
}
CONFLICTING = {
    "hash_seed": "random",
    "omp_threads": "4,2",
    "omp_dynamic": "TRUE",
    "mkl_threads": "all",
    "mkl_dynamic": "TRUE",
    "cublas_workspace": ":0:0",
    "inductor_deterministic": "0",
    "flash_attention": "0",
    "transformer_engine": "1",
    "nccl_algorithm": "Tree",
}


def environment(
    mode: RunMode = RunMode.STRICT,
    *,
    env: dict[str, str] | None = None,
    host: dict[str, str] | None = None,
    **determinism: object,
) -> dict[str, str]:
    train = {
        "command": ("python", "train.py"),
        "max_steps": 3,
        "env": env or {},
        "pass_env": tuple(host or {}),
    }
    settings = settings_of(train=train, determinism=determinism)
    planned = PlannedRun(label="strict-1", mode=mode)
    return child_environment(planned, settings, FOLDERS, host or {})


def harness_knobs(variables: dict[str, str]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in variables["REPRO_GATE_KNOBS"].split(";"))


def refusal(**env: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        environment(env=env)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value


def test_every_knob_that_acts_before_the_start_is_tried_below() -> None:
    active = {knob.name for knob in VARIABLES} - {"mkl_cbwr"}
    assert VALID.keys() == CONFLICTING.keys() == active


@each_row("name", VALID)
def test_a_valid_value_of_the_users_is_kept_and_told_to_the_harness(name: str) -> None:
    variable = BY_NAME[name].variable
    variables = environment(env={variable: VALID[name]})
    assert variables[variable] == VALID[name] == harness_knobs(variables)[name]


@each_row("name", CONFLICTING)
def test_a_conflicting_value_is_an_error_with_both_values(name: str) -> None:
    variable = BY_NAME[name].variable
    error = refusal(**{variable: CONFLICTING[name]})
    assert error.message.startswith(f"{variable} is '{CONFLICTING[name]}', the knob {name} needs '")
    assert f"determinism.knobs.{name} to keep" in error.hint


@each_row("name", VALID)
def test_every_variable_can_be_left_out_alone(name: str) -> None:
    full, without = environment(), environment(knobs={name: OFF})
    assert full.keys() - without.keys() == {BY_NAME[name].variable}
    assert harness_knobs(without)[name] == "keep"


def test_a_value_handed_on_from_the_host_counts_as_the_users() -> None:
    host = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    assert environment(host=host)["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    with pytest.raises(SettingsError, match=":0:0"):
        environment(host={"CUBLAS_WORKSPACE_CONFIG": ":0:0"})


def test_a_knob_that_is_kept_leaves_the_users_value_alone() -> None:
    variables = environment(env={"NCCL_ALGO": "Tree"}, knobs={"nccl_algorithm": "keep"})
    assert variables["NCCL_ALGO"] == "Tree"


def test_a_value_asked_for_by_name_is_set_and_held_exactly() -> None:
    knobs = {"mkl_cbwr": "AVX2,STRICT", "cublas_workspace": ":16:8"}
    variables = environment(knobs=knobs)
    assert variables["MKL_CBWR"] == "AVX2,STRICT"
    assert variables["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    with pytest.raises(SettingsError, match="':4096:8', the knob cublas_workspace needs ':16:8'"):
        environment(env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, knobs=knobs)


def test_the_default_profile_sets_seeds_and_threads_alone() -> None:
    strict = environment(profile=Profile.DEFAULT)
    default = environment(RunMode.DEFAULT)
    assert strict | {"REPRO_GATE_MODE": "default"} == default
    assert {name for name, word in harness_knobs(strict).items() if word != "keep"} == {
        *("hash_seed", "omp_threads", "omp_dynamic", "mkl_threads", "mkl_dynamic"),
        *("seed_python", "seed_numpy", "seed_torch", "seed_cuda", "seed_workers"),
    }


def test_an_override_of_determinism_stays_out_of_default_runs() -> None:
    knobs = {"cudnn_benchmark": "on", "fp32_matmul": "tf32", "seed_numpy": "off"}
    strict = harness_knobs(environment(knobs=knobs))
    default = harness_knobs(environment(RunMode.DEFAULT, knobs=knobs))
    assert (strict["cudnn_benchmark"], default["cudnn_benchmark"]) == ("on", "keep")
    assert strict["fp32_matmul"] == default["fp32_matmul"] == "tf32"
    assert strict["seed_numpy"] == default["seed_numpy"] == "off"


def test_memory_fill_has_a_key_of_its_own_and_is_off_in_strict_runs() -> None:
    assert harness_knobs(environment())["memory_fill"] == "off"
    assert harness_knobs(environment(fill_uninitialized_memory=True))["memory_fill"] == "on"


def test_the_users_thread_count_is_everyones() -> None:
    variables = environment(env={"OMP_NUM_THREADS": "4"})
    assert variables["REPRO_GATE_THREADS"] == variables["MKL_NUM_THREADS"] == "4"


def test_two_different_thread_counts_are_an_error() -> None:
    with pytest.raises(SettingsError) as caught:
        environment(env={"OMP_NUM_THREADS": "4"}, threads=2)
    assert caught.value.message == "OMP_NUM_THREADS is 4, determinism.threads is 2"
    assert environment(env={"OMP_NUM_THREADS": "2"}, threads=2)["REPRO_GATE_THREADS"] == "2"


def test_caches_lie_in_the_folder_that_each_run_finds_empty() -> None:
    variables = environment()
    assert variables["TORCHINDUCTOR_CACHE_DIR"] == "/run/tmp/inductor"
    assert variables["TRITON_CACHE_DIR"] == "/run/tmp/triton"
    assert variables["CUDA_CACHE_PATH"] == "/run/tmp/cuda"


@pytest.mark.parametrize("variable", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"])
def test_a_cache_that_runs_would_share_is_refused(variable: str) -> None:
    error = refusal(**{variable: "/cache"})
    assert error.message == f"{variable} is '/cache', every run needs its own cache"


def test_the_mode_of_the_override_log_reaches_the_harness() -> None:
    assert environment()["REPRO_GATE_ON_OVERRIDE"] == "observe"
    assert environment(on_override=OnOverride.FAIL)["REPRO_GATE_ON_OVERRIDE"] == "fail"
