from __future__ import annotations

from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.pipelines.doctor.commit_checks import (
    PolicyPaths,
    examined_command,
    examined_work_tree,
    named_paths,
    uncommitted,
    uncommitted_fault,
)
from gate.pipelines.doctor.health import CheckResult

NAMES = st.text("abc.", min_size=1, max_size=4)


def test_one_untracked_folder_is_named_and_not_its_files() -> None:
    seen = uncommitted(tuple(f".venv/lib/{number}.py" for number in range(25094)), (".venv/",))
    assert str(uncommitted_fault(seen, may_allow=True)) == (
        "uncommitted changes: `.venv/` is untracked (25,094 files)\n"
        "hint: Add `.venv/` to .gitignore and commit that. Or set them aside: `git stash -u`. Or "
        "add --allow-dirty: the verdict lists them, and nothing is sealed."
    )


def test_a_folder_beside_changes_is_one_line_of_them() -> None:
    seen = uncommitted(("train.py", "out/a", "out/b", "new.py"), ("out/", "new.py"))
    assert seen.summary == "the work tree has 3 uncommitted changes"
    assert seen.entries == ("out/ (2 untracked files)", "train.py", "new.py")
    assert seen.fix == (
        "Commit them, or add new files that do not belong to the project to .gitignore"
    )


def test_nothing_new_is_never_told_to_be_ignored() -> None:
    # git goes on to track what it tracks
    assert str(uncommitted_fault(uncommitted(("train.py",), ()), may_allow=True)) == (
        "the work tree has 1 uncommitted change\n"
        "  train.py\n"
        "hint: Commit them. Or set them aside: `git stash -u`. Or add --allow-dirty: the verdict "
        "lists them, and nothing is sealed."
    )


POLICY = PolicyPaths(baseline=".repro-gate/baseline", settings="repro-gate.yml", trust="keys.json")


@each_row(
    ("changed", "untracked", "hint"),
    [
        (
            (".repro-gate/baseline/a.json",),
            (".repro-gate/",),
            "`git add .repro-gate && git commit -m Baseline`. Or add --allow-dirty: ",
        ),
        (
            ("repro-gate.yml",),
            (),
            "`git add repro-gate.yml && git commit -m repro-gate`. Or add --allow-dirty: ",
        ),
        (
            ("keys.json", "x.py"),
            ("x.py",),
            "`git add keys.json && git commit -m repro-gate`. For the rest: commit them, ",
        ),
    ],
)
def test_what_judges_is_to_be_committed_and_never_ignored_or_put_aside(
    changed: tuple[str, ...], untracked: tuple[str, ...], hint: str
) -> None:
    fault = uncommitted_fault(uncommitted(changed, untracked, POLICY), may_allow=True)
    assert fault.hint.startswith(hint)
    assert "stash" not in fault.hint


@given(st.lists(NAMES, min_size=1, max_size=30, unique=True), st.sets(NAMES, max_size=3))
def test_every_change_is_told_once(names: list[str], folders: set[str]) -> None:
    below = [f"{folder}/{name}" for folder in folders for name in names]
    seen = uncommitted((*names, *below), tuple(f"{folder}/" for folder in folders))
    told = [entry.partition(" (")[0] for entry in seen.entries]
    assert sorted(told) == sorted([*names, *(f"{folder}/" for folder in folders)])


def test_many_changes_are_a_few_names_and_a_number() -> None:
    row = examined_work_tree(tuple("abcdefg"), ())
    assert row.health is CheckResult.FAIL
    assert row.found == "the work tree has 7 uncommitted changes: a, b, c, d, and 3 more"


def test_an_interpreter_that_the_commit_lacks_is_not_to_be_committed() -> None:
    words = (".venv/bin/python", "train.py")
    row = examined_command(words, words[:1], words[:1], [words[0]])
    assert (row.health, row.found) == (CheckResult.FAIL, ".venv/bin/python is not in the commit")
    assert row.fix == (
        "If it is in a virtual environment that git ignores, activate that and write `python` in "
        "train.command."
    )


@each_row(
    ("word", "path"),
    [
        ("train.py", "sub/train.py"),
        ("--data=a/b.bin", "sub/a/b.bin"),
        ("./x", "sub/x"),
        ("/etc/passwd", None),
        ("../x", None),
        ("--data=../../x", None),
        ("-u", None),
        ("--flag=", None),
        ("", None),
        (".", None),
    ],
)
def test_a_word_is_a_path_of_the_repository_or_none(word: str, path: str | None) -> None:
    assert named_paths(("python", word), "sub").get(word) == path
