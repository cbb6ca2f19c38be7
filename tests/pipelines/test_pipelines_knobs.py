from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from harness_folder import override_line

from gate.errors import EvidenceError, SettingsError

if TYPE_CHECKING:
    from gate_bench import Bench
    from played_training import Project


def test_a_knob_that_the_training_turns_back_is_a_finding(bench: Bench, project: Project) -> None:
    project.play(overrides=override_line(), environment={"device": "a GPU, 132 multiprocessors"})
    findings = {each.code: each.message for each in bench.gate().verdict.findings}
    assert (
        findings["settings-overridden"]
        == "train.py:12 changed cudnn_benchmark from off to on at step 3"
    )


@pytest.mark.parametrize(
    ("device", "suspects"), [("a GPU, 132 multiprocessors", ["train.py:12"]), ("cpu", [])]
)
def test_runs_that_differ_name_the_knob_that_was_turned_back_where_it_acts(
    bench: Bench, project: Project, device: str, suspects: list[str]
) -> None:
    project.play(overrides=override_line(), random=True, environment={"device": device})
    found = bench.gate().verdict.diagnosis
    assert found is not None
    assert [suspect.place for suspect in found.suspects] == suspects
    assert found.remedy.startswith("Leave cudnn_benchmark off at train.py:12") == bool(suspects)


def test_the_settings_can_make_it_an_error(bench: Bench, project: Project) -> None:
    project.play(overrides=override_line())
    project.settings("determinism: {on_override: fail}\n")
    with pytest.raises(EvidenceError, match="run strict-1: the training overrode") as caught:
        bench.gate()
    assert caught.value.details == ("train.py:12, step 3: cudnn_benchmark from off to on",)


def test_a_variable_against_its_knob_stops_the_gate_before_the_first_run(
    bench: Bench, project: Project
) -> None:
    settings = (project.path / "repro-gate.yml").read_text()
    variable = "  env: {CUBLAS_WORKSPACE_CONFIG: ':0:0'}\n"
    project.write("repro-gate.yml", settings.replace("isolation", f"{variable}isolation"))
    project.commit()
    with pytest.raises(SettingsError, match="CUBLAS_WORKSPACE_CONFIG is ':0:0', the knob"):
        bench.gate()
