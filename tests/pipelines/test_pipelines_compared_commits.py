"""Two commits beside each other, with a played training: real processes, no torch."""

from __future__ import annotations

import pytest
from gate_bench import Bench
from played_training import Project

from gate.comparison.measurements import Closeness, ComparedCommits
from gate.errors import RepositoryError, RunError, SettingsError
from gate.pipelines.compare_commits import compare_commits

LOSSES = [str(2.5 - step / 64) for step in range(8)]
MOVED = [*LOSSES[:4], str(float(LOSSES[4]) * 1.001), *LOSSES[5:]]
UNREADABLE = (
    "the base commit's repro-gate.yml cannot be read: repro-gate.yml: 2 errors; both ran under "
    "the work tree's"
)
QUICK = "cost: {warmup_steps: 1, min_steps: 4}\n"


def compare(
    priced: Bench, base: str = "HEAD~1", *, runs: int = 2, **call: object
) -> ComparedCommits:
    request = priced.request(base=base, **call)
    found = compare_commits(request, priced.adapters(), base_name=base, rounds=runs)
    assert len(found.runs) == 4 * runs
    return found.document


def commits(project: Project, base: dict[str, object], head: dict[str, object]) -> None:
    """Settings first, so that base and head differ in the training alone."""
    project.settings(QUICK)
    project.play(**{"losses": LOSSES, **base})
    project.play(**{"losses": LOSSES, **head})


def test_equal_commits_are_equal_bit_for_bit(priced: Bench, project: Project) -> None:
    commits(project, {}, {"says": "another word"})
    found = compare(priced)
    assert (found.closeness, found.repeatable, found.first) == (Closeness.EQUAL, True, None)
    assert (found.base.strict_results, found.head.default_results) == (1, 1)
    assert found.base.checkpoint_digest == found.head.checkpoint_digest
    assert (found.base.commit, found.head.commit) == (
        project.git("rev-parse", "HEAD~1").strip(),
        project.git("rev-parse", "HEAD").strip(),
    )
    assert found.seed == 42
    assert found.order[:4] == ("base-1", "strict-1", "default-1", "base-default-1")


def test_settings_of_the_base_are_named_and_not_used(priced: Bench, project: Project) -> None:
    project.play(losses=LOSSES)
    # the gate would not run a base under these; who asks for it by name gets it
    policy = "policy: {run_base_on_drift: false}\n"
    project.settings(f"cost: {{min_steps: 4}}\n{policy}")
    project.settings(QUICK + policy)
    found = compare(priced)
    changes = {change.what: (change.before, change.after) for change in found.settings_changes}
    assert changes == {"cost.warmup_steps": ("5", "1")}
    assert found.ratios[0].steps_used == len(LOSSES) - 1


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (None, "the base commit has no repro-gate.yml: both ran under the work tree's"),
        (
            "version: 9\n",
            UNREADABLE,
        ),
    ],
)
def test_a_base_without_readable_settings_runs_all_the_same(
    priced: Bench, project: Project, text: str | None, note: str
) -> None:
    if text is None:
        project.git("rm", "-q", "--cached", "repro-gate.yml")
        (project.path / "repro-gate.yml").unlink()
    else:
        project.write("repro-gate.yml", text)
    project.commit()
    project.settings(QUICK)
    found = compare(priced)
    assert (found.closeness, found.settings_changes) == (Closeness.EQUAL, ())
    assert found.notes == (note,)


def test_uncommitted_changes_are_a_head_where_they_are_allowed(
    priced: Bench, project: Project
) -> None:
    commits(project, {}, {})
    project.write("play.json", (project.path / "play.json").read_text().replace("2.5", "2.625"))
    with pytest.raises(RepositoryError, match="the work tree has 1 uncommitted change"):
        compare(priced, "HEAD")
    found = compare(priced, "HEAD", allow_dirty=True)
    assert found.head.changed_files == ("play.json",)
    assert found.closeness is Closeness.APART


def test_one_commit_is_nothing_to_compare(priced: Bench, project: Project) -> None:
    with pytest.raises(
        SettingsError, match=r"--base HEAD is the commit itself, \w{12}: there is"
    ) as no:
        compare(priced, "HEAD")
    assert "repro-gate noise" in no.value.hint
    assert "work" not in {path.name for path in priced.out.glob("*")}
    assert project.path.is_dir()


def test_an_odd_number_of_rounds_would_favour_one(priced: Bench, project: Project) -> None:
    commits(project, {}, {})
    with pytest.raises(SettingsError, match="--runs 3: an odd number") as no:
        compare(priced, runs=3)
    assert no.value.hint == "Use --runs 4."


def test_a_base_that_fails_is_called_by_its_name(priced: Bench, project: Project) -> None:
    commits(project, {"exit": 3}, {})
    with pytest.raises(RunError, match=r"the base commit \(HEAD~1\): run base-1: ") as failed:
        compare(priced)
    assert "Name a base that trains under this repro-gate.yml." in failed.value.hint


def test_a_base_that_cannot_be_exported_is_called_by_its_name(
    priced: Bench, project: Project
) -> None:
    (project.path / "out").symlink_to("/etc/passwd")
    project.commit()
    (project.path / "out").unlink()
    project.settings(QUICK)
    with pytest.raises(RunError, match=r"the base commit \(HEAD~1\): the link out points out of"):
        compare(priced)


def test_a_head_that_fails_is_not_the_base(priced: Bench, project: Project) -> None:
    commits(project, {}, {"exit": 3})
    with pytest.raises(RunError, match=r"^run strict-1: "):
        compare(priced)
