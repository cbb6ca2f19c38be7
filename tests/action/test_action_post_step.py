"""The post step: it ends and removes what its own step left behind, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from each_row import each_row
from fake_docker import EngineRefusalError, FakeDocker

from gate.action.post_step import PostStep, clean_up
from gate.errors import ExitCode
from gate.isolation.engine import Engine
from gate.settings.event import StepState, read_step_state, state_file_text
from gate.system.files.files import LocalFiles

RUN, OTHER_RUN = "0123456789abcdef", "fedcba9876543210"
LABEL = "repro-gate.run"


@dataclass
class Scene:
    """A workspace, an engine, and what the post step says."""

    workspace: Path
    docker: FakeDocker = field(default_factory=FakeDocker)
    said: list[str] = field(default_factory=list)

    def made(self, run: str) -> str:
        return Engine(self.docker.connect).create({"Labels": {LABEL: run}})

    def clean_up(self, **state: str) -> ExitCode:
        told = {f"STATE_{name}": value for name, value in state.items()}
        variables = {"GITHUB_WORKSPACE": str(self.workspace), **told}
        step = PostStep(
            variables=variables,
            files=LocalFiles(),
            engine=Engine(self.docker.connect),
            say=self.said.append,
        )
        return clean_up(step)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_after_an_orderly_end_there_is_nothing_to_do(scene: Scene) -> None:
    assert scene.clean_up(repro_gate_run=RUN, repro_gate_container="a" * 64) is ExitCode.PASS
    assert scene.said == []


def test_containers_of_the_step_are_removed_and_no_others(scene: Scene) -> None:
    scene.made(RUN)
    stays = scene.made(OTHER_RUN)
    assert scene.clean_up(repro_gate_run=RUN) is ExitCode.PASS
    assert scene.said == ["removed 1 leftover training container"]
    assert list(scene.docker.containers_made) == [stays]
    Engine(scene.docker.connect).remove(stays)


def test_the_gates_own_container_is_ended_when_it_still_runs(scene: Scene) -> None:
    own = scene.made(RUN)
    scene.docker.containers_made["a" * 64] = scene.docker.containers_made.pop(own)
    scene.clean_up(repro_gate_run=OTHER_RUN, repro_gate_container="a" * 64)
    assert scene.said == ["removed the gate's own container, which was still running"]
    assert scene.docker.containers_made == {}


def test_copies_of_the_code_are_removed_and_the_rest_is_kept(scene: Scene) -> None:
    out = scene.workspace / "repro-gate-out"
    (out / "work" / "run" / "tree").mkdir(parents=True)
    (out / "evidence").mkdir()
    scene.clean_up()
    assert [path.name for path in out.iterdir()] == ["evidence"]
    assert scene.said == ["removed leftover copies of the code from the output folder"]


def test_a_link_in_the_place_of_the_output_folder_is_left_alone(scene: Scene) -> None:
    elsewhere = scene.workspace / "elsewhere"
    (elsewhere / "work").mkdir(parents=True)
    (scene.workspace / "repro-gate-out").symlink_to(elsewhere)
    assert scene.clean_up() is ExitCode.PASS
    assert (elsewhere / "work").is_dir()
    assert scene.said == []


def test_without_an_engine_there_are_no_containers_to_look_for(scene: Scene) -> None:
    scene.docker.refuses["info"] = EngineRefusalError(500, "gone")
    assert scene.clean_up(repro_gate_run=RUN) is ExitCode.PASS
    assert scene.said == [
        "cannot look for containers: asking the container engine failed: gone",
    ]


def test_a_container_that_cannot_be_removed_is_told(scene: Scene) -> None:
    scene.docker.refuses["remove"] = EngineRefusalError(500, "device busy")
    scene.made(RUN)
    assert scene.clean_up(repro_gate_run=RUN) is ExitCode.ERROR
    assert scene.said[0].startswith("::error")
    assert "removing the training's containers failed: device busy" in scene.said[1]
    del scene.docker.refuses["remove"]
    assert Engine(scene.docker.connect).remove_run(RUN) == 1


def test_state_survives_the_runners_file() -> None:
    state = StepState(run=RUN, container="b" * 64)
    lines = [line.split("=", 1) for line in state_file_text(state).splitlines()]
    assert read_step_state({f"STATE_{name}": value for name, value in lines}) == state


@each_row("value", ["", "x" * 16, RUN + "\n", "../" + RUN, "A" * 64])
def test_what_the_step_cannot_have_written_is_ignored(value: str) -> None:
    variables = {"STATE_repro_gate_run": value, "STATE_repro_gate_container": value}
    assert read_step_state(variables) == StepState()
