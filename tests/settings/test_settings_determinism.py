from __future__ import annotations

from pathlib import Path

import pytest
from each_row import each_row

from gate.errors import SettingsError
from gate.settings.gate_settings import GateSettings
from gate.settings.knobs import BY_NAME, KNOBS, Profile
from gate.settings.load import parse_settings, training_digest
from gate.settings.train_sections import OnOverride

BEFORE_KNOBS = "version: 1\ntrain: {command: python train.py, max_steps: 3}\n"


def parsed(determinism: str = "{}") -> GateSettings:
    return parse_settings(f"{BEFORE_KNOBS}determinism: {determinism}\n".encode(), "repro-gate.yml")


def fault(determinism: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parsed(determinism)
    return caught.value.details[0]


def test_strict_and_observing_is_the_default() -> None:
    determinism = parsed().determinism
    assert (determinism.profile, determinism.on_override) == (Profile.STRICT, OnOverride.OBSERVE)
    assert determinism.overrides == {}


def test_words_may_stand_bare_as_yaml_reads_them() -> None:
    text = "{knobs: {cudnn_benchmark: on, seed_numpy: off, hash_seed: 7, fp32_cudnn: ieee}}"
    assert parsed(text).determinism.knobs == {
        "cudnn_benchmark": "on",
        "seed_numpy": "off",
        "hash_seed": "7",
        "fp32_cudnn": "ieee",
    }


def test_an_unknown_knob_is_refused_with_all_that_there_are() -> None:
    text = fault("{knobs: {cudnn_bench: on}}")
    assert "'cudnn_bench' is not a knob; there are hash_seed, " in text
    assert "reduced_bf16" in text


@each_row(
    ("name", "word"),
    [
        ("nccl_algorithm", "Tree"),
        ("cublas_workspace", "':0:0'"),
        ("fp32_cudnn", "on"),
        ("fp32_cudnn", "bf16"),
        ("fp32_matmul", "bf16"),
        ("cudnn_benchmark", "fast"),
        ("seed_torch", "7"),
        ("hash_seed", "'1;2'"),
    ],
)
def test_a_value_that_a_knob_cannot_take_is_refused(name: str, word: str) -> None:
    assert f"{name} cannot be {word.strip(chr(39))!r}; it takes" in fault(
        f"{{knobs: {{{name}: {word}}}}}"
    )


def test_every_knob_can_be_kept_as_it_is() -> None:
    words = ", ".join(f"{knob.name}: keep" for knob in KNOBS)
    assert set(parsed(f"{{knobs: {{{words}}}}}").determinism.knobs) == set(BY_NAME)


def test_names_and_variables_of_knobs_are_distinct() -> None:
    variables = [knob.variable for knob in KNOBS if knob.variable]
    assert len(BY_NAME) == len(KNOBS)
    assert len(set(variables)) == len(variables)
    assert all(knob.source for knob in KNOBS)


def test_baselines_from_before_there_were_knobs_still_belong_to_the_training() -> None:
    assert training_digest(parsed()) == training_digest(
        parse_settings(BEFORE_KNOBS.encode(), "repro-gate.yml")
    )
    parts = parsed().determinism.parts_of_the_experiment()
    assert parts == {"threads": 1, "fill_uninitialized_memory": False}


def test_what_changes_numbers_is_part_of_the_experiment_and_watching_is_not() -> None:
    plain = training_digest(parsed())
    assert training_digest(parsed("{on_override: fail}")) == plain
    for changed in (
        "{on_override: restore}",
        "{profile: default}",
        "{knobs: {cudnn_benchmark: on}}",
    ):
        assert training_digest(parsed(changed)) != plain


def test_the_documented_table_is_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "knobs.md").read_text("utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    told = {row[0].strip("| `"): row for row in rows if len(row) > 5}
    assert set(told) == set(BY_NAME)
    assert "attests them as `variables.NAME` or `applied.KNOB`" in text
    for name, knob in BY_NAME.items():
        row = told[name]
        assert (row[2], row[3]) == (knob.strict, knob.default)
        assert knob.variable in row[1]
