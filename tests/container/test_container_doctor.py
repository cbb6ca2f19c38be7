"""`repro-gate doctor` in the action's image, as examples/workflows/doctor.yml starts it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from played_training import SETTINGS, Project
from runner_emulator import Job

from gate.isolation.engine import engine_address

pytestmark = pytest.mark.docker
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "workflows" / "doctor.yml"


def test_the_doctor_sees_what_the_action_will_have(
    open_folder: Path, action_image: str, base_image: str
) -> None:
    project = Project(open_folder / "workspace")
    project.write(
        "repro-gate.yml",
        SETTINGS.replace("{mode: none}", f"{{mode: container, image: '{base_image}'}}"),
    )
    project.commit()
    socket = Path(engine_address(os.environ).removeprefix("unix://"))
    job = Job(open_folder, action_image, project.path, socket=socket)
    job.give_workspace_to_runner()
    step = yaml.safe_load(EXAMPLE.read_text("utf-8"))["jobs"]["doctor"]["steps"][-1]["with"]
    result = job.image_alone(step["entrypoint"], [*step["args"].split(), "--json"])
    found = {row["name"]: row for row in json.loads(result.log)["examined"]}
    assert result.exit_code == 3
    assert found["engine"]["found"] == "a container engine answers"
    assert found["isolation"]["found"].startswith("container ")
    assert found["training"]["found"] == (
        "its Python failed: ModuleNotFoundError: No module named 'torch'"
    )
    assert found["history"]["health"] == "ok"
    assert result.commands == []
    assert not (project.path / "repro-gate-out").exists()
