"""`repro-gate bisect`: the commit that did it, from as few trainings as its answer needs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command_line import Ended, Run
from data_training import LOSSES, READS
from hypothesis import given
from hypothesis import strategies as st
from played_training import SETTINGS, Project

from gate.pipelines.bisect import needed_runs

MOVED: dict[str, object] = {"losses": ["2.5", "2.25", "2.0"]}


def line(project: Project, *plays: dict[str, object] | None) -> list[str]:
    """Commits one after the other, some of which play something else from then on."""
    hashes = [project.git("rev-parse", "HEAD")]
    for number, play in enumerate(plays):
        project.write("notes.txt", str(number))
        hashes.append(project.commit(f"note {number}") if play is None else project.play(**play))
    return hashes


def bisect(run: Run, good: str, bad: str, *words: str | Path) -> Ended:
    return run("bisect", "--good", good, "--bad", bad, *words)


def document(ended: Ended) -> dict[str, object]:
    found: dict[str, object] = json.loads(ended.out)
    return found


def test_the_commit_that_moved_the_result_is_named_with_all_that_one_asks_next(
    project: Project, run: Run
) -> None:
    hashes = line(project, None, None, MOVED, None, None)
    ended = bisect(run, hashes[0], hashes[-1])
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"{hashes[3]} moved the result\n  author    Ada, 2026-01-02")
    for text in ("subject   change", f"against   {hashes[2][:12]}", "changed   play.json"):
        assert f"  {text}\n" in ended.out
    words = " ".join(ended.out.split())
    assert "Loss at step 3: 2 instead of 2.125" in words
    assert "Cause the forward pass computes a different loss" in words


def test_runs_that_are_kept_are_used_again_and_the_answer_is_the_same(
    project: Project, run: Run
) -> None:
    hashes = line(project, None, MOVED, None, None)
    first = document(bisect(run, hashes[0], hashes[-1], "--json"))
    second = document(bisect(run, hashes[0], hashes[-1], "--json"))
    assert first["culprit"] == second["culprit"]
    fresh = [(one["commit"], one["runs"] - one["reused"]) for one in second["judged"]]  # type: ignore[attr-defined] # a list
    # one run of the good end says which environment this is
    assert [pair for pair in fresh if pair[1]] == [(hashes[0], 1)]


def test_kept_runs_of_other_settings_or_damaged_ones_are_not_used(
    project: Project, run: Run
) -> None:
    hashes = line(project, MOVED, None)
    first = document(bisect(run, hashes[0], hashes[-1], "--json"))
    kept = project.path / "repro-gate-bisect" / "commits"
    (damaged,) = kept.glob(f"*/{hashes[1]}/0001/strict-1/evidence.json")
    damaged.write_bytes(damaged.read_bytes().replace(b'"', b"'", 1))
    again = bisect(run, hashes[0], hashes[-1])
    assert f"kept runs of {hashes[1][:12]} are passed over" in again.err
    (project.path / "repro-gate.yml").write_text(SETTINGS + "repeats: 3\n")
    other = document(bisect(run, hashes[0], hashes[-1], "--json"))
    assert other["culprit"] == first["culprit"]
    assert {one["reused"] for one in other["judged"]} == {0}  # type: ignore[attr-defined] # a list
    assert other["notes"] == ["every commit was trained under repro-gate.yml as it is, uncommitted"]


def test_evidence_of_a_gate_call_is_used(project: Project, run: Run, tmp_path: Path) -> None:
    hashes = line(project, MOVED, None)
    assert run("run", "--commit", hashes[1], "--out", tmp_path / "ran", "-q").code == 0
    offered = ("--evidence", tmp_path / "ran", "--json")
    found = document(bisect(run, hashes[0], hashes[-1], *offered))
    reused = {one["commit"]: one["reused"] for one in found["judged"]}  # type: ignore[attr-defined] # a list
    assert reused[hashes[1]] == 2


def test_runs_with_other_declared_data_are_not_used(
    project: Project, run: Run, tmp_path: Path
) -> None:
    data = tmp_path / "mini"
    data.mkdir()
    (data / "losses.txt").write_text(LOSSES)
    project.write("train.py", READS)
    project.settings(f"data:\n  - {{path: {data}}}\n")
    hashes = line(project, None, {"plus": 1}, None)
    assert run("run", "--commit", hashes[1], "--out", tmp_path / "ran", "-q").code == 0
    first = document(bisect(run, hashes[0], hashes[-1], "--json"))
    (data / "losses.txt").write_text("9.5 9.25 9.125")
    ended = bisect(run, hashes[0], hashes[-1], "--evidence", tmp_path / "ran", "--json")
    again = document(ended)
    # the data moved the result of each commit alike, and no commit is blamed for it
    assert again["culprit"] == first["culprit"]
    assert again["culprit"]["commit"] == hashes[2]  # type: ignore[index] # a dict
    assert {one["reused"] for one in again["judged"]} == {0}  # type: ignore[attr-defined] # a list
    told = bisect(run, hashes[0], hashes[-1], "--evidence", tmp_path / "ran").err
    assert f"evidence of {hashes[1][:12]} is left out: the declared data changed since" in told


def test_a_commit_that_made_the_result_nondeterministic_is_found_with_its_confidence(
    project: Project, run: Run
) -> None:
    hashes = line(project, MOVED, None, {"random": True}, None)
    found = document(bisect(run, hashes[0], hashes[-1], "--json"))
    # the result had moved before: what is looked for is what the bad end has
    assert (found["sought"], found["culprit"]["commit"]) == ("nondeterminism", hashes[3])  # type: ignore[index] # a dict
    assert found["diagnosis"]["outcome"] == "nondeterministic"  # type: ignore[index] # a dict
    assert 0.95 <= float(str(found["confidence"])) < 1
    good = [one["runs"] for one in found["judged"] if one["answer"] == "good"]  # type: ignore[attr-defined] # a list
    assert min(good) >= int(str(found["needed_runs"])) > 2


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 14))
def test_a_fault_as_rare_as_the_one_seen_is_missed_by_no_more_than_its_share(
    frequent: int, struck: int, commits: int
) -> None:
    runs = frequent + struck
    needed = needed_runs(frequent, runs, confidence=0.95, commits=commits)
    share = (frequent + 1) / (runs + 2)
    # all other runs alike is the spread that hides best
    all_equal = share**needed + (1 - share) ** needed
    assert all_equal <= 0.05 / commits + 1e-12 or share < 0.5
    assert share ** (needed - 1) <= 0.05 / commits + 1e-12
    assert needed_runs(frequent, runs, confidence=0.99, commits=commits) >= needed


def test_commits_that_do_not_train_are_skipped_and_the_range_is_named(
    project: Project, run: Run
) -> None:
    hashes = line(project, None, {"exit": 1}, MOVED, None)
    ended = bisect(run, hashes[0], hashes[-1], "-q")
    assert ended.code == 1
    assert set(ended.out.split()) == {hashes[2], hashes[3]}
    shown = bisect(run, hashes[0], hashes[-1])
    assert shown.out.startswith("One of 2 commits moved the result: those between did not train\n")
    failed = "its training failed: run strict-1: python3 train.py exited with 1"
    assert f"{hashes[2][:12]} is skipped: {failed}" in shown.err


def merged(project: Project) -> tuple[str, str, str]:
    """A branch from the good commit whose second commit moved the result: good, that, the merge."""
    good = project.git("rev-parse", "HEAD")
    project.git("checkout", "-q", "-b", "topic")
    project.write("topic.txt", "1")
    project.commit()
    culprit = project.play(**MOVED)
    project.git("checkout", "-q", "main")
    project.write("notes.txt", "1")
    project.commit()
    project.git("merge", "-q", "--no-ff", "-m", "merge topic", "topic")
    return good, culprit, project.git("rev-parse", "HEAD")


def test_a_commit_of_a_merged_branch_is_found_and_with_first_parent_its_merge(
    project: Project, run: Run
) -> None:
    good, culprit, merge = merged(project)
    assert bisect(run, good, merge, "-q").out == f"{culprit}\n"
    ended = bisect(run, good, merge, "--first-parent")
    assert ended.out.startswith(f"{merge} moved the result\n")
    assert f"{merge[:12]} is a merge" in " ".join(ended.out.split())


def test_tolerances_of_the_settings_may_decide(project: Project, run: Run) -> None:
    loose = "compare: {tolerances: [{metric: loss, relative: 0.01}]}\n"
    project.settings(loose)
    near: dict[str, object] = {"losses": ["2.5", "2.25", "2.1250001"]}
    hashes = line(project, near, None, MOVED, None)
    assert bisect(run, hashes[0], hashes[-1], "-q").out == f"{hashes[1]}\n"
    ended = bisect(run, hashes[0], hashes[-1], "--within-tolerance", "-q")
    assert ended.out == f"{hashes[3]}\n", ended.err


def test_ends_that_are_none_are_refused(project: Project, run: Run) -> None:
    hashes = line(project, None, MOVED)
    project.git("checkout", "-q", "-b", "elsewhere", hashes[0])
    elsewhere = project.commit("elsewhere")
    for good, bad, message in (
        ("nowhere", hashes[-1], "there is no commit 'nowhere' in this repository"),
        (hashes[0], hashes[0], "--good and --bad are the same commit"),
        (hashes[-1], hashes[0], "They are the wrong way round."),
        (elsewhere, hashes[-1], f"Their merge base is {hashes[0][:12]}."),
        (hashes[0], hashes[1], "both are good: 3 runs of --bad"),
    ):
        ended = bisect(run, good, bad, "--max-runs", "3")
        assert (ended.code, message in ended.err) == (2, True), ended.err


def test_a_good_end_that_is_bad_itself_is_refused(project: Project, run: Run) -> None:
    hashes = line(project, {"random": True}, None)
    ended = bisect(run, hashes[1], hashes[2])
    assert ended.code == 2
    assert f"both are bad: of --good {hashes[1][:12]}, 2 runs gave 2 results" in ended.err


@pytest.mark.parametrize(("option", "place"), [("--good", 0), ("--bad", 1)])
def test_an_end_that_does_not_train_is_named(
    project: Project, run: Run, option: str, place: int
) -> None:
    plays: list[dict[str, object] | None] = [None, None]
    plays[place] = {"exit": 1}
    hashes = line(project, *plays) if place else line(project, {"exit": 1}, {})[1:]
    ended = bisect(run, hashes[0], hashes[-1])
    assert ended.code == 3
    assert f"error: the training of {option} " in ended.err


def test_a_shallow_clone_is_refused(
    project: Project, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line(project, None, None)
    words = ("git", "clone", "-q", "--depth", "2", f"file://{project.path}", tmp_path / "shallow")
    subprocess.run(words, check=True)
    monkeypatch.chdir(tmp_path / "shallow")
    ended = bisect(run, "HEAD~1", "HEAD")
    assert ended.code == 2
    assert "this clone is shallow" in ended.err
    assert "git fetch --unshallow" in ended.err


def test_a_call_that_ends_early_leaves_the_work_tree_clean(project: Project, run: Run) -> None:
    ended = bisect(run, "HEAD", "HEAD")
    assert (ended.code, "--good and --bad are the same commit" in ended.err) == (2, True)
    assert project.git("status", "--porcelain") == ""
