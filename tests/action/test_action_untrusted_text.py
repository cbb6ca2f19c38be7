"""Hostile text in every field that a training can influence, through the whole action.

The harness's documents are written by the training here; what arrives is looked at as GitHub, the
browser, the runner and a terminal would look at it.
"""

from __future__ import annotations

import io
import json

import pytest
from action_scene import Scene
from harmless import hidden_characters, log_faults, markdown_faults, page_faults
from rich.console import Console

from gate.errors import ExitCode
from gate.report.assembly import ReportLinks
from gate.report.terminal import verdict_view
from gate.text.documents import read_document
from gate.verdict.verdict import Verdict

HASH = "0123456789abcdef0123456789abcdef01234567"
EVIL = (
    "@octocat #123 GH-1 o/model#5 o/model@" + HASH + " " + HASH + " deadbee1 https://evil.example "
    "www.evil.example [a](javascript:x) ![i](http://e.example) <img src=x onerror=e> <!-- --> "
    "</details> `` ``` | ~~s~~ **b** $x$ &lt; \u202ertl\u2066 \u200bzero \x1b[31mred\x1b]0;t\x07 "
    "\u2028 ::add-mask::1 ##[error]no [bold]"
)
LINES = f"{EVIL}\n::set-output name=verdict::reproduced\n ::stop-commands::x\r##[warning]z\n"
HUGE = "@octocat " * (10 * 1024 * 1024 // 9)
USE = {"operator": EVIL[:120], "file": EVIL[:300], "line": 3, "step": 1}


def check(scene: Scene) -> Verdict:
    """Nothing of the text may act anywhere; the verdict that was shown."""
    out = scene.project.path / "repro-gate-out"
    comment, summary = scene.comment, (scene.folder / "summary").read_text()
    verdict = read_document(Verdict, (out / "verdict.json").read_bytes(), "verdict.json")
    assert markdown_faults(comment) == []
    assert markdown_faults(summary) == []
    assert page_faults((out / "report.html").read_text()) == []
    assert log_faults(scene.said) == []
    assert (len(comment.encode()) <= 60_000, len(summary.encode()) <= 2_000_000) == (True, True)
    file = io.StringIO()
    Console(file=file, width=80, highlight=False, markup=False).print(
        verdict_view(verdict, ReportLinks())
    )
    assert not hidden_characters(file.getvalue())
    output = (scene.folder / "output").read_text()
    assert output.count("\nverdict<<") + output.startswith("verdict<<") == scene.calls
    return verdict


def hostile(**changes: object) -> dict[str, object]:
    parts = {"device": "cpu", "torch": EVIL, "packages": EVIL, EVIL[:80]: EVIL}
    return {
        "says": LINES,
        "environment": parts,
        "tensor": f"model/{EVIL[:200]}",
        "files": {"m.jsonl": json.dumps({"step": 1, EVIL[:150]: 1.0}) + "\n"},
        "default": {"problems": [EVIL], "losses": ["1", "2", "3"]},
        "overrides": {
            "step": 1,
            "kind": "switch",
            "name": EVIL[:100],
            "before": EVIL[:100],
            "after": EVIL[:100],
            "file": EVIL[:100],
            "line": 1,
            "closed": False,
            "restored": False,
        },
        **changes,
    }


def metrics_file(scene: Scene) -> None:
    settings = (scene.project.path / "repro-gate.yml").read_text()
    scene.project.write(
        "repro-gate.yml",
        settings.replace("  max_steps: 3\n", "  max_steps: 3\n  metrics: {file: m.jsonl}\n"),
    )
    scene.base = scene.project.commit()


def test_every_field_of_a_run_that_can_be_judged(scene: Scene) -> None:
    metrics_file(scene)
    scene.project.play(**hostile())
    scene.base = scene.project.git("rev-parse", "HEAD")
    scene.with_baseline()
    scene.project.play(**hostile(losses=["2.5", "2.25", "9.0"], weights="other"))
    assert scene.run() == ExitCode.FAIL
    verdict = check(scene)
    assert "octocat" in str(verdict.environment)
    assert any("octocat" in delta.name for delta in verdict.baseline.tensors)  # type: ignore[union-attr] # a drift has one
    assert "octocat" in scene.comment


def test_what_moves_between_two_runs_is_diagnosed_in_its_own_words(scene: Scene) -> None:
    metrics_file(scene)
    scene.project.play(**hostile(random=True))
    assert scene.run() == ExitCode.FAIL
    assert check(scene).outcome.value == "nondeterministic"


def test_the_output_of_a_training_that_fails(scene: Scene) -> None:
    empty = dict.fromkeys(("uses", "modules", "autotuners", "extensions"), ())
    counted = {**empty, "refused": [USE]}
    scene.project.play(exit=1, says=LINES, counted=counted)
    assert scene.run() == ExitCode.ERROR
    verdict = check(scene)
    assert "octocat" in "".join(verdict.fault_details)
    assert "strict mode refused" in verdict.cause


@pytest.mark.parametrize(
    "play",
    [
        {"environment": {"torch": HUGE}},
        {"problems": [HUGE]},
        {"tensor": HUGE},
        {"files": {"m.jsonl": json.dumps({"step": 1, HUGE: 1.0}) + "\n"}},
    ],
    ids=["environment", "problems", "tensor", "metric"],
)
def test_ten_megabytes_are_refused_in_a_few_words(scene: Scene, play: dict[str, object]) -> None:
    metrics_file(scene)
    scene.project.play(**{**hostile(), **play})
    assert scene.run() == ExitCode.ERROR
    check(scene)
    assert len(scene.comment) < 10_000
