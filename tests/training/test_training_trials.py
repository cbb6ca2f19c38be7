"""A run that tries one setting: that one moves, and everything else stays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from each_row import each_row
from evidence_cases import settings_of

from gate.evidence.evidence_folder import RUN_NAME
from gate.settings.gate_settings import GateSettings
from gate.settings.knobs import KNOBS
from gate.settings.variations import FIRST_FILL, SECOND_FILL, THREAD_VARIABLES, Setting
from gate.training.child_environment import child_environment, with_trial
from gate.training.launch import run_folders
from gate.training.plan import plan_trial
from gate.training.runs import EarlyEnd, Trial

FOLDERS = run_folders(Path("/run"))
HOST = {"PATH": "/bin", "OMP_NUM_THREADS": "8"}
THREADED = settings_of(
    determinism={"threads": 4},
    train={"command": ("python", "train.py"), "max_steps": 9, "env": {"MKL_NUM_THREADS": "4"}},
)


def variables(
    setting: Setting, settings: GateSettings = THREADED, **more: object
) -> dict[str, str]:
    trial = Trial(setting=setting, max_seconds=5.0, **more)  # type: ignore[arg-type] # by name
    moved = with_trial(settings, trial)
    return child_environment(plan_trial(1, trial), moved, FOLDERS, HOST)


def moved_by(setting: Setting, **more: object) -> dict[str, str]:
    """What is other than in a run with nothing moved."""
    plain, told = variables(Setting.NOTHING), variables(setting, THREADED, **more)
    assert not plain.keys() - told.keys()
    return {name: text for name, text in told.items() if plain.get(name) != text}


def test_nothing_is_moved_but_the_end_in_a_run_to_compare_with() -> None:
    told = variables(Setting.NOTHING, end=EarlyEnd(step=2, optimizers=(1, 3), written=True))
    assert (told["REPRO_GATE_MAX_STEPS"], told["OMP_NUM_THREADS"]) == ("9", "4")
    ends = [told[f"REPRO_GATE_END_{name}"] for name in ("STEP", "OPTIMIZERS", "WRITTEN")]
    assert ends == ["2", "1;3", "1"]
    assert "REPRO_GATE_TRIAL" not in told


def test_one_thread_is_one_in_every_library() -> None:
    told = moved_by(Setting.ONE_THREAD)
    assert told.pop("REPRO_GATE_KNOBS")
    assert told == {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "REPRO_GATE_THREADS": "1",
        "REPRO_GATE_TRIAL": "one-thread",
        **dict.fromkeys(THREAD_VARIABLES, "1"),
    }


def test_one_thread_goes_before_a_count_that_is_passed_on() -> None:
    passed = settings_of(
        train={
            "command": ("python", "train.py"),
            "max_steps": 9,
            "pass_env": ("OMP_NUM_THREADS",),
        },
        determinism={"knobs": {"mkl_threads": 8}},
    )
    assert variables(Setting.NOTHING, passed)["OMP_NUM_THREADS"] == "8"
    told = variables(Setting.ONE_THREAD, passed)
    assert (told["OMP_NUM_THREADS"], told["MKL_NUM_THREADS"]) == ("1", "1")


@each_row(
    ("setting", "moved"),
    [
        (Setting.RESTORE, {"REPRO_GATE_ON_OVERRIDE": "restore"}),
        (Setting.ONE_WORKER, {"REPRO_GATE_TRIAL": "one-worker"}),
        (Setting.NO_LOADER_WORKERS, {"REPRO_GATE_TRIAL": "no-loader-workers"}),
        (Setting.FIXED_COLLECTIVES, {"REPRO_GATE_TRIAL": "fixed-collectives"}),
        (Setting.LAUNCH_BLOCKING, {"CUDA_LAUNCH_BLOCKING": "1"}),
    ],
)
def test_a_setting_moves_alone(setting: Setting, moved: dict[str, str]) -> None:
    assert moved_by(setting) == moved


@pytest.mark.parametrize("byte", [FIRST_FILL, SECOND_FILL])
def test_the_heap_holds_the_byte_that_numpy_is_filled_with(byte: int) -> None:
    told = moved_by(Setting.HEAP_FILL, fill=byte)
    # new memory holds the complement of the tunable
    perturb = re.search(r"perturb=(\d+):", told["GLIBC_TUNABLES"])
    assert perturb is not None
    assert 0xFF - int(perturb[1]) == byte
    assert told["REPRO_GATE_TRIAL"] == f"fill:{byte}"


def test_the_two_fills_differ_in_every_bit() -> None:
    assert FIRST_FILL ^ SECOND_FILL == 0xFF


@pytest.mark.parametrize(
    ("setting", "more", "word"),
    [
        (Setting.TORCH_FILL, {}, "memory_fill=on"),
        (Setting.KNOB, {"knob": "attention_flash", "word": "off"}, "attention_flash=off"),
    ],
)
def test_a_knob_moves_alone(setting: Setting, more: dict[str, str], word: str) -> None:
    before = variables(Setting.NOTHING)["REPRO_GATE_KNOBS"].split(";")
    told = moved_by(setting, **more)
    after = told.pop("REPRO_GATE_KNOBS").split(";")
    assert not told
    assert [new for new in after if new not in before] == [word]


@each_row("name", ["", *(knob.name for knob in KNOBS)])
def test_a_trial_has_a_folder_of_its_own(name: str) -> None:
    trial = Trial(setting=Setting.NO_LOADER_WORKERS, knob=name, max_seconds=1.0)
    assert re.fullmatch(RUN_NAME, f"{plan_trial(3, trial).label}/evidence.json")
