"""A tracker has its names from one record, so that a further one costs few files."""

from __future__ import annotations

from pathlib import Path

import pytest

import gate
from gate.settings.delivery_sections import PublishSettings
from gate.settings.gate_settings import check_variable_name
from gate.system.programs import without_secrets
from gate.text.trackers import TRACKERS, TrackerNames

SOURCE = Path(gate.__file__).parent
# besides its record, its settings, its client and what makes that
OWN = {
    "text/trackers.py",
    "settings/delivery_sections.py",
    "settings/reach.py",
    "pipelines/call_setup.py",
    "publishing/tracked.py",
}


@pytest.mark.parametrize("tracker", TRACKERS, ids=lambda tracker: tracker.key)
def test_no_other_module_names_a_tracker(tracker: TrackerNames) -> None:
    own = {*OWN, f"publishing/{tracker.key}.py"}
    named = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if tracker.key in path.read_text(encoding="utf-8").lower()
    }
    assert named - own == set()
    assert f"publishing/{tracker.key}.py" in named


@pytest.mark.parametrize("tracker", TRACKERS, ids=lambda tracker: tracker.key)
def test_no_login_of_a_tracker_reaches_a_training_or_another_program(
    tracker: TrackerNames,
) -> None:
    assert tracker.key in PublishSettings.model_fields
    assert tracker.login
    for name in tracker.login:
        assert name.startswith(tracker.prefix)
        assert without_secrets({name: "x"}) == {}
        with pytest.raises(ValueError, match=name):
            check_variable_name(name)
