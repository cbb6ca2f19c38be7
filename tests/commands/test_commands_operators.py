from __future__ import annotations

import json

from command_line import Run
from played_training import Project

USE = {
    "source": "alert",
    "operator": "put_",
    "device": "any",
    "direction": "forward",
    "file": "train.py",
    "line": 7,
    "spans": [[1, 3, 1]],
}


def test_the_operator_audit_is_printed_and_written(project: Project, run: Run) -> None:
    project.play(counted={"uses": [USE]})
    ended = run("operators", "--out", "results")
    assert ended.code == 0
    assert "Operators (1; counted in a separate run)" in ended.out
    assert "put_" in ended.out
    written = json.loads((project.path / "results" / "operators.json").read_text())
    assert written["rows"][0]["where"] == "train.py:7"


def test_the_operator_audit_as_json_is_the_document_alone(project: Project, run: Run) -> None:
    project.play(counted={})
    ended = run("operators", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out)["complete"] is True
