"""Which lines two commits do not share, whatever the repository configures."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_workshop import Repository

from gate.diagnosis.inert_changes import without_inert
from gate.system.git.changes import Change, ChangedLines
from gate.system.git.repository import GitRepository


@pytest.fixture
def project(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "project")
    made.write("train.py", "".join(f"line {number}\n" for number in range(1, 21)))
    made.write("gone.py", "one\n")
    made.commit()
    return made


def change_of(project: Repository) -> Change:
    before = project.git("rev-parse", "HEAD~1").strip()
    after = project.git("rev-parse", "HEAD").strip()
    return GitRepository(project.path).changed_lines(before, after)


def hunks(project: Repository) -> list[tuple[str, bool]]:
    return [(hunk.place, hunk.removed) for hunk in change_of(project).hunks]


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
        ("gone.py", False),
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


def test_a_hunk_has_the_lines_of_both_commits(project: Repository) -> None:
    changed("line 5\nline 6\n", "five `x` @me\n", project)
    (hunk,) = change_of(project).hunks
    assert (hunk.before, hunk.after) == (("line 5", "line 6"), ("five `x` @me",))
    assert (hunk.gone, hunk.new) == (2, 1)


def test_only_the_first_lines_of_a_long_hunk_are_kept(project: Repository) -> None:
    changed("line 5\n", "".join(f"{'x' * 500} {number}\n" for number in range(50)), project)
    (hunk,) = change_of(project).hunks
    assert (len(hunk.after), hunk.new, len(hunk.after[0])) == (6, 50, 200)


def test_two_long_lines_are_cut_around_what_differs(project: Repository) -> None:
    long = "names = [" + ", ".join(f"'{number:04}'" for number in range(200)) + "]"
    changed("line 5", long, project)
    changed("'0150'", "'0xxx'", project)
    (hunk,) = change_of(project).hunks
    (before,), (after,) = hunk.before, hunk.after
    assert "'0149', '0150', '0151'" in before
    assert "'0149', '0xxx', '0151'" in after
    assert len(before) == len(after) == 200
    assert before[0] == after[0] == "…"


def test_a_long_line_without_an_equal_start_is_cut_at_its_end(project: Repository) -> None:
    changed("line 5", "a" * 300, project)
    changed("a" * 300, "b" + "a" * 300, project)
    (hunk,) = change_of(project).hunks
    assert (hunk.before, hunk.after) == (("a" * 200,), ("b" + "a" * 199,))


def test_the_text_of_all_hunks_is_bounded(project: Repository) -> None:
    for number in range(120):
        project.write(f"many/{number:03}.txt", f"{'y' * 190}\n" * 6)
    project.commit()
    kept = [hunk.after for hunk in change_of(project).hunks]
    assert len(kept) == 120
    assert sum(len(line) for lines in kept for line in lines) < 2 * 64 * 1024
    assert kept[-1] == ()


def test_a_file_without_lines_is_named(project: Repository) -> None:
    project.write("weights.bin", b"\x00\x01".decode("latin-1"))
    project.commit()
    assert hunks(project) == [("weights.bin", False)]


def test_a_change_with_a_name_that_cannot_be_shown_is_not_called_complete(
    project: Repository,
) -> None:
    project.write("a\tb.py", "1\n")
    changed("line 5\n", "five\n", project)
    assert hunks(project) == [("train.py:5", False)]
    assert not change_of(project).complete


def candidates(project: Repository) -> tuple[ChangedLines, ...]:
    repository = GitRepository(project.path)
    return without_inert(change_of(project), lambda file: repository.read_file("HEAD", file)).hunks


def test_a_name_with_letters_beyond_ascii_is_named_as_it_is(project: Repository) -> None:
    project.write("größe 大/train.py", "one\n")
    project.commit()
    assert hunks(project) == [("größe 大/train.py:1", False)]
    assert change_of(project).complete


INERT = {
    "x = 1": "x = 1  # steps",
    "y = 2  # old": "y = 2",
    "z = f('a # b')  # one": "z = f('a # b')  # two",
    "# heading": "# title",
    "class A:\n    b = 1": 'class A:\n    """Text."""\n    b = 1',
    "a = 1\n\nb = 2": "a = 1\nb = 2",
    "a = 1\n# old\nb = 2\n": "a = 1\nb = 2\n",
    "import os\nimport random": "import random\nimport os",
    "import torch\nfrom torch import nn\nimport numpy as np": (
        "import numpy as np\nimport torch\nfrom torch import nn"
    ),
    "import json": "import json\nimport time",
    '# eight\nt = """\na"""\n': '# nine\nt = """\na"""\n',
    't = """\na"""\n# ten\nb = 1': 't = """\na"""\nb = 1',
}
NOTICED = {
    "x = 1  # steps": "x = 2  # steps",
    "# coding: latin-1": "# coding: utf-8",
    "z = 'a # b'": "z = 'a # c'",
    'f(\n    """a"""\n)': 'f(\n    """b"""\n)',
    "if a:\n    b = 1": "if a:\n  b = 1",
    "it's a # heading": "it's a # title",
    '    """text # one': '    """text # two',
    't = """\n# one\n"""': 't = """\n# two\n"""',
    't = f"""{a}\n# three\n{b}"""': 't = f"""{a}\n# four\n{b}"""',
    "t = '''\n# five\nb'''": "t = '''\nb'''",
    't = """\na\n\nb"""': 't = """\na\nb"""',
    "import numpy as np": "import torch as np",
    "from math import sin": "from math import cos",
    "import settings\nimport data": "import data\nimport settings",
    "import json\nx = 1": "x = 1\nimport json\nprint()",
    f"x = '{'a' * 200}' # 1": f"x = '{'a' * 200}' # 2",
}


@pytest.mark.parametrize(("old", "new"), [*INERT.items(), *NOTICED.items()])
def test_a_change_that_no_program_can_notice_is_left_out(
    project: Repository, old: str, new: str
) -> None:
    project.write("model.py", f"{old}\n")
    project.commit()
    project.write("model.py", f"{new}\n")
    changed("line 5\n", "five\n", project)
    whole = change_of(project)
    # who asks what differs is told of all of it; only a cause is not looked for there
    assert {hunk.file for hunk in whole.hunks} == {"model.py", "train.py"}
    files = {hunk.file for hunk in candidates(project)}
    assert files == ({"train.py"} if old in INERT else {"model.py", "train.py"})


@pytest.mark.parametrize(
    ("name", "old", "new", "inert"),
    [
        ("a.yaml", "lr: 1", "lr: 1  # low", True),
        ("a.toml", "# old\nlr = 1", "# new\nlr = 1", True),
        ("a.yaml", "path: a#b", "path: a#c", False),
        ("a.yaml", "a: 1\nrun: |-\n  # old\n  b", "a: 1\nrun: |-\n  # new\n  b", False),
        ("a.toml", 'a = """\n# old\n"""', 'a = """\n# new\n"""', False),
        ("a.txt", "word # one", "word # two", False),
        ("a.csv", "1 # one", "1 # two", False),
    ],
)
def test_comments_of_settings_files_are_left_out_and_none_of_data(
    project: Repository, name: str, old: str, new: str, *, inert: bool
) -> None:
    project.write(name, f"{old}\n")
    project.commit()
    project.write(name, f"{new}\n")
    project.commit()
    kept = candidates(project)
    assert not kept if inert else kept
