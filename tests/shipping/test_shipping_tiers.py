"""The tiers of tests: their budgets are said, and a night goes on where it was broken off."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import nightly
import pytest
import tier
import yaml
from each_row import each_row
from git_workshop import Repository
from nightly import PARTS, PASSED, Part, read_summary, run_parts, table, write_summary

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
README = (ROOT / "tests" / "README.md").read_text("utf-8")
TWO = tuple(part for part in PARTS if part.target in ("test-properties", "test-slow"))


class Night:
    """Plays parts: what each ended with, and which were run."""

    def __init__(self, **ends: str) -> None:
        self.ends = {name.replace("_", "-"): end for name, end in ends.items()}
        self.ran: list[str] = []
        self.said: list[str] = []

    def __call__(self, part: Part, log: Path) -> str:
        self.ran.append(part.target)
        log.write_text("")
        return self.ends.get(part.target, PASSED)

    def run(self, folder: Path, commit: str = "a" * 40) -> dict[str, str]:
        results = run_parts(TWO, folder, commit, self, self.said.append)
        return {name: result.result for name, result in results.items()}


def test_what_trains_under_the_harness_with_torch_is_not_in_the_fast_tier() -> None:
    """Three seconds for each process, in files that name the fixture `harness`."""
    unmarked = []
    for path in (ROOT / "tests" / "harness").glob("test_*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        given = {one.arg for one in ast.walk(tree) if isinstance(one, ast.arg)}
        texts = [one.value for one in ast.walk(tree) if isinstance(one, ast.Constant)]
        trains = any(isinstance(text, str) and "\nimport torch\n" in text for text in texts)
        marks = {one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute)}
        if "harness" in given and trains and not marks & {"torch", "slow", "gpu"}:
            unmarked.append(path.name)
    assert unmarked == []


def test_each_part_is_a_target_and_runs_at_night() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text("utf-8"))
    named = workflow["jobs"]["part"]["strategy"]["matrix"]["part"]
    assert named == [part.target for part in PARTS]
    assert [name for name in named if not re.search(rf"^{name}:", MAKEFILE, re.MULTILINE)] == []
    assert [name for name in named if f"`make {name}`" not in README] == []


def test_a_part_that_fails_stops_no_other(tmp_path: Path) -> None:
    night = Night(test_properties="failed with exit code 2")
    assert night.run(tmp_path) == {
        "test-properties": "failed with exit code 2",
        "test-slow": PASSED,
    }
    assert "test-properties: failed with exit code 2 in 0.0 min; see " in night.said[1]


def test_a_night_goes_on_where_it_stopped(tmp_path: Path) -> None:
    Night(test_properties="timed out after 90 min").run(tmp_path)
    again = Night()
    assert again.run(tmp_path) == dict.fromkeys(("test-properties", "test-slow"), PASSED)
    assert again.ran == ["test-properties"]
    assert "test-slow: passed at this commit already" in again.said


def test_pages_that_parts_write_do_not_make_a_night_another_one(tmp_path: Path) -> None:
    """Else each night that goes on would start from its beginning."""
    repository = Repository(tmp_path / "project")
    repository.write("docs/results/page.md", "old")
    repository.write("code.py", "old")
    commit = repository.commit()
    repository.write("docs/results/page.md", "new")
    repository.write("docs/results/other.md", "new")
    assert nightly.commit_of(repository.path) == commit
    repository.write("code.py", "new")
    assert nightly.commit_of(repository.path) == commit + "-dirty"


@pytest.mark.parametrize("commit", ["b" * 40, "a" * 40 + "-dirty"])
def test_what_passed_at_another_commit_or_with_changes_is_run_again(
    tmp_path: Path, commit: str
) -> None:
    Night().run(tmp_path)
    Night().run(tmp_path, commit)
    again = Night()
    again.run(tmp_path, commit.replace("b", "c"))
    assert again.ran == [part.target for part in TWO]


def test_a_night_that_is_broken_off_keeps_what_was_found(tmp_path: Path) -> None:
    class Broken(Night):
        def __call__(self, part: Part, log: Path) -> str:
            if part.target == "test-slow":
                raise KeyboardInterrupt
            return super().__call__(part, log)

    with pytest.raises(KeyboardInterrupt):
        Broken().run(tmp_path)
    assert list(read_summary(tmp_path)) == ["test-properties"]


@each_row("text", ["", "[1]", "[{}]", '{"part": 1}', "\x00"])
def test_a_summary_that_is_none_is_begun_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    night = Night()
    night.run(tmp_path)
    assert night.ran == [part.target for part in TWO]


def test_the_table_says_what_was_not_run(tmp_path: Path) -> None:
    night = run_parts(TWO[:1], tmp_path, "a" * 40 + "-dirty", Night(), print)
    write_summary(tmp_path, night.values())
    rows = table(TWO, read_summary(tmp_path)).splitlines()[2:]
    assert rows[0].startswith("| test-properties | passed | aaaaaaaaaa-dirty | 0.0 |")
    assert rows[1].startswith("| test-slow | not run |  |  |")


def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("hangs:\n\t@echo begun; sleep 600\nbreaks:\n\t@exit 3\n")
    hanging = Part(target="hangs", minutes=0, claim="")
    assert nightly.run_part(hanging, tmp_path / "log", tmp_path) == "timed out after 0 min"
    breaking = Part(target="breaks", minutes=1, claim="")
    assert nightly.run_part(breaking, tmp_path / "log", tmp_path) == "failed with exit code 2"


def test_an_unknown_part_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        nightly.main(["test-fats"])
    assert "no part is called test-fats; parts are test-properties, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (239, "check: took 3 min 59 s; its budget is 4 min on two quiet cores"),
        (241, "check: took 4 min 1 s (over budget); its budget is 4 min on two quiet cores"),
    ],
)
def test_a_tier_says_what_it_took_beside_its_budget(seconds: float, said: str) -> None:
    assert tier.report("check", seconds) == said


def test_a_failure_is_handed_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert tier.main(["check", sys.executable, "-c", ""]) == 0
    assert "check: took 0 min 0 s" in capfd.readouterr().out
    assert tier.main(["check", sys.executable, "-c", "raise SystemExit(5)"]) == 5
    assert tier.main(["check", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137


def test_budgets_are_written_where_tests_are_explained() -> None:
    for name, minutes in tier.BUDGET_MINUTES.items():
        target = ".ci/run" if name == "ci" else f"make {name}"
        assert f"`{target}` | {minutes} min" in README
    assert "scripts/tier.py ci" in (ROOT / ".ci" / "run").read_text("utf-8")
