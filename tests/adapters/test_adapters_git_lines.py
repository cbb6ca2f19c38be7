"""Which lines two commits do not share, whatever the repository configures."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_workshop import Repository

from gate.adapters.git.repository import GitRepository


@pytest.fixture
def project(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "project")
    made.write("train.py", "".join(f"line {number}\n" for number in range(1, 21)))
    made.write("gone.py", "one\n")
    made.commit()
    return made


def hunks(project: Repository) -> list[tuple[str, bool]]:
    before = project.git("rev-parse", "HEAD~1").strip()
    after = project.git("rev-parse", "HEAD").strip()
    found = GitRepository(project.path).changed_lines(before, after)
    return [(change.place, change.removed) for change in found]


def changed(old: str, new: str, project: Repository) -> None:
    text = (project.path / "train.py").read_text("utf-8")
    project.write("train.py", text.replace(old, new))
    project.commit()


def test_changed_added_and_removed_lines_are_told(project: Repository) -> None:
    (project.path / "gone.py").unlink()
    project.write("new.py", "a\nb\n")
    text = (project.path / "train.py").read_text("utf-8")
    text = text.replace("line 3\n", "three\n").replace("line 9\nline 10\n", "")
    project.write("train.py", text)
    project.commit()
    assert hunks(project) == [
        ("new.py:1-2", False),
        ("train.py:3", False),
        ("train.py:8", True),
    ]


def test_a_line_that_looks_like_gits_own_is_content(project: Repository) -> None:
    changed("line 5\n", "++ b/evil.py\n@@ -1 +1,99 @@\n", project)
    assert hunks(project) == [("train.py:5-6", False)]


def test_no_program_of_the_configuration_runs(project: Repository) -> None:
    ran = project.path.parent / "ran"
    project.git("config", "diff.external", f"touch {ran}")
    project.git("config", "diff.python.command", f"touch {ran}")
    project.git("config", "diff.python.textconv", f"touch {ran}")
    project.write(".gitattributes", "*.py diff=python\n")
    changed("line 5\n", "five\n", project)
    assert ("train.py:5", False) in hunks(project)
    assert not ran.exists()


def test_a_very_long_line_is_one_line(project: Repository) -> None:
    changed("line 5\n", "x" * 200_000 + "\nshort\n", project)
    assert hunks(project) == [("train.py:5-6", False)]
