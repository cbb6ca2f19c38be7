"""Whatever a pull request's files hold, and whatever is raised: words, outputs, status, comment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from action_scene import Scene
from each_row import each_row
from harmless import log_faults, markdown_faults

from gate.errors import ExitCode
from gate.pipelines.adapters import Adapters

COMMAND = "##[set-output name=verdict;]reproduced"
HOSTILE = {
    "command in a tag": f'x: !!bool "{COMMAND}"',
    "deep": "[" * 100_000,
    "deeper": "x: " + "[" * 2_000,
    "huge number": "max_steps: 0x" + "f" * 20_000,
    "no character": 'x: "\\UFFFFFFFF"',
    "empty number": 'x: !!int ""',
    "itself": "x: &a [*a]",
    "not text": "\x00\x01",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_settings_that_a_pull_request_spoils_change_nothing_and_say_nothing(
    scene: Scene, name: str
) -> None:
    scene.with_baseline()
    text = (scene.project.path / "repro-gate.yml").read_text()
    scene.project.write("repro-gate.yml", f"{text}{HOSTILE[name]}\n")
    scene.project.commit()
    assert scene.run() == ExitCode.PASS
    assert log_faults(scene.said) == []
    assert "cannot be read: repro-gate.yml: " in scene.comment
    assert "::set-output" not in scene.comment
    assert markdown_faults(scene.comment) == []


@dataclass
class Spoilt(Scene):
    """A scene in which a part of the gate raises what no code expects."""

    raised: Exception = field(default_factory=Exception)

    def _adapters(self, top: Path) -> Adapters:
        adapters = super()._adapters(top)

        def isolate(*_: object) -> None:
            raise self.raised

        return replace(adapters, isolate=isolate)  # type: ignore[arg-type] # it never answers


@pytest.mark.parametrize(
    "raised", [KeyError(COMMAND), RecursionError(), MemoryError(), ValueError(f"\n{COMMAND}\n")]
)
def test_what_no_code_expects_is_told_everywhere_and_replaces_an_older_green(
    scene: Scene, raised: Exception
) -> None:
    scene.with_baseline()
    assert scene.run({"INPUT_STATUS": "true"}) == ExitCode.PASS
    assert "repro-gate passed" in scene.comment
    spoilt = Spoilt(project=scene.project, server=scene.server, folder=scene.folder)
    spoilt.base, spoilt.raised = scene.base, raised
    assert spoilt.run({"INPUT_STATUS": "true"}) == ExitCode.ERROR
    assert log_faults(spoilt.said) == []
    assert f"repro-gate itself failed: {type(raised).__name__}" in "\n".join(spoilt.said)
    assert "repro-gate could not check" in scene.comment
    assert markdown_faults(scene.comment) == []
    assert (spoilt.output("verdict"), spoilt.output("exit_code")) == ("error", "3")
    assert spoilt.statuses()[-1]["state"] == "error"


def test_settings_that_are_wrong_replace_an_older_green_too(scene: Scene) -> None:
    scene.with_baseline()
    assert scene.run() == ExitCode.PASS
    scene.project.write("repro-gate.yml", "version: 1\n")
    scene.base = scene.project.commit()
    assert scene.run() == ExitCode.USAGE
    assert "repro-gate could not check" in scene.comment
    assert "repro-gate.yml: 1 error" in scene.comment


def test_a_report_that_cannot_be_written_is_no_bug_of_the_gate(scene: Scene) -> None:
    scene.with_baseline()
    assert scene.run({"GITHUB_OUTPUT": "/none/output"}) == ExitCode.ERROR
    said = "\n".join(scene.said)
    assert "appending to /none/output failed: No such file or directory" in said
    assert "This is a bug in repro-gate" not in said


@each_row(
    ("changed", "sentence"),
    [
        ({"INPUT_MODE": "trust"}, "input mode: 'trust' is not one of"),
        ({"INPUT_COMMENT": "maybe"}, "input comment: 'maybe' is neither true nor false"),
        ({"INPUT_SIGN": "gpg"}, "input sign: 'gpg' is not one of"),
        ({"INPUT_GATE_ID": "a b"}, "input gate_id: 'a b' is not the id of a gate"),
        ({"INPUT_OUT": "../x"}, "input out: '../x' must be a relative path inside the project"),
        ({"INPUT_EVIDENCE": "/x"}, "input evidence: '/x' must be a relative path"),
        (
            {"INPUT_CONFIG": "../x.yml"},
            "input config: '../x.yml' must be a relative path inside the project, without '..'",
        ),
        ({"GITHUB_EVENT_NAME": "pull_request_target"}, "event pull_request_target: refused"),
        ({"GITHUB_EVENT_NAME": ""}, "event '': not supported"),
        ({"GITHUB_EVENT_PATH": "/nowhere/event.json"}, "/nowhere/event.json"),
    ],
)
def test_a_fault_before_the_settings_has_outputs_and_a_summary(
    scene: Scene, changed: dict[str, str], sentence: str
) -> None:
    for name in ("output", "summary"):
        (scene.folder / name).unlink(missing_ok=True)
    code = scene.run(changed)
    assert code != ExitCode.PASS
    assert scene.output("exit_reason") == code.name.lower()
    assert scene.output("exit_code") == str(int(code))
    assert any(sentence in line for line in scene.said)
    assert "repro-gate" in (scene.folder / "summary").read_text()
