"""A run that was stopped on purpose is read without what only a whole run has."""

from __future__ import annotations

import pytest
from evidence_cases import record_of
from harness_folder import HarnessFolder, step_line

from gate.errors import EvidenceError
from gate.evidence.collect import collect_run
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import TrainSettings
from gate.settings.train_sections import MetricsSettings
from gate.system.files.files import LocalFiles

# every setting that names something which a training writes, most often at its end
WRITTEN: dict[str, dict[str, object]] = {
    "checkpoint": {"checkpoint": "out/c.pt"},
    "checkpoint_exclude": {
        "checkpoint": "out/c.pt",
        "checkpoint_exclude": ({"pattern": "time", "reason": "it is one"},),
    },
    "metrics.file": {"metrics": {"file": "m.jsonl"}},
    "metrics.stdout_pattern": {"metrics": {"stdout_pattern": r"final (?P<final>\S+)"}},
    "metrics.tensorboard": {"metrics": {"tensorboard": "runs"}},
    "metrics.tensorboard_tags": {
        "metrics": {"tensorboard": "runs", "tensorboard_tags": ("final/*",)}
    },
    "metrics.trackio": {"metrics": {"trackio": "trackio"}},
    "metrics.trackio_keys": {"metrics": {"trackio": "trackio", "trackio_keys": ("final/*",)}},
    "metrics.wandb": {"metrics": {"wandb": "wandb"}},
    "metrics.wandb_keys": {"metrics": {"wandb": "wandb", "wandb_keys": ("final/*",)}},
}
# these say how a training is started and stopped
STARTED = {
    *("command", "max_steps", "workdir", "seed", "timeout_seconds", "output_limit_bytes"),
    *("env", "pass_env", "metrics", "device", "files"),
}


def read(harness: HarnessFolder, settings: dict[str, object], *, partial: bool) -> RunEvidence:
    run = record_of("traced-1").model_copy(update={"partial": partial, "output_bytes": 9})
    train = TrainSettings.model_validate({"command": ("python", "t.py"), "max_steps": 9} | settings)
    place = harness.path.parent
    return collect_run(LocalFiles(), run, harness.path, place, b"training\n", train)


def test_every_setting_of_a_training_is_known_here() -> None:
    names = {
        *TrainSettings.model_fields,
        *(f"metrics.{one}" for one in MetricsSettings.model_fields),
    }
    assert names == {*WRITTEN, *STARTED}


@pytest.mark.parametrize("settings", WRITTEN.values(), ids=WRITTEN)
def test_a_whole_run_has_to_write_it_and_a_partial_one_need_not(
    harness: HarnessFolder, settings: dict[str, object]
) -> None:
    harness.whole()
    with pytest.raises(EvidenceError):
        read(harness, settings, partial=False)
    found = read(harness, settings, partial=True)
    assert ([one.name for one in found.metrics], found.unused_settings) == (["loss"], ())


@pytest.mark.parametrize("settings", WRITTEN.values(), ids=WRITTEN)
def test_all_that_a_training_writes_may_still_be_empty(
    harness: HarnessFolder, settings: dict[str, object]
) -> None:
    harness.whole()
    for name in ("out/c.pt", "m.jsonl", "runs/events.out.tfevents.1"):
        path = harness.path.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    assert [*read(harness, settings, partial=True).steps.steps] == [1, 2]


def test_what_it_wrote_by_then_is_read(harness: HarnessFolder) -> None:
    harness.whole()
    (harness.path.parent / "m.jsonl").write_text('{"step": 1, "accuracy": 0.5}\n')
    found = read(harness, WRITTEN["metrics.file"], partial=True)
    assert [one.name for one in found.metrics] == ["file.accuracy", "loss"]


def test_a_partial_run_may_have_no_metric_yet(harness: HarnessFolder) -> None:
    harness.whole()
    harness.steps(step_line(1, loss=None), step_line(2, loss=None))
    assert read(harness, WRITTEN["metrics.file"], partial=True).metrics == ()
