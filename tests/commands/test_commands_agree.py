"""What follows a gate call says the same of its training as the call: one fault, many verbs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Ended, Run, record
from data_training import LOSSES, PREPARE, READS, UNSEEDED
from each_row import each_row
from played_training import Project

PACKAGE = "repro-gate-out/package.tar"
UNREPEATED = "the preprocessing is not repeatable: two runs of python3 prepare.py wrote different"


def words(ended: Ended) -> str:
    """Everything that a command printed, in one line."""
    return " ".join((ended.out + ended.err).split())


def trusted(run: Run) -> tuple[str, ...]:
    """What `verify` asks for: a new trust file beside the project, and any commit."""
    assert run("keys", "generate", "--out", "../keys").code == 0
    return "--trusted-keys", "../keys/trusted-keys.json", "--commit", "a" * 40


@pytest.fixture
def prepared(project: Project, tmp_path: Path) -> Project:
    """A project that trains on what a command makes of declared data."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "losses.txt").write_text(LOSSES)
    project.write("train.py", READS)
    project.write("prepare.py", PREPARE)
    project.settings(
        f"cost: {{when: never}}\ndata:\n  - {{path: {tmp_path}/raw}}\n"
        "preprocess: {command: python3 prepare.py, out: data/ready}\n"
    )
    return project


def test_preprocessing_that_does_not_repeat_is_said_by_every_verb(
    prepared: Project, run: Run
) -> None:
    assert run("baseline", "record", "-q", "--reason", "first").code == 0
    good = prepared.commit()
    prepared.write("prepare.py", PREPARE + UNSEEDED)
    bad = prepared.commit()
    gated = run("gate", "--base", good)
    assert gated.code == 1
    assert "It differs from run to run: first make the preprocessing repeatable." in (
        Path("repro-gate-out/comment.md").read_text()
    )
    for verb in (
        ("baseline", "record", "--reason", "again"),
        ("bisect", "--good", good, "--bad", bad),
        ("compare", "--base", good, "--runs", "2", "--out", "repro-gate-compared"),
        ("reproduce", PACKAGE, "--unsealed"),
        ("audit", "--package", PACKAGE),
    ):
        ended = run(*verb)
        assert UNREPEATED in words(ended), (verb, words(ended))
        assert ended.code == {"baseline": 3, "bisect": 2, "audit": 1}.get(verb[0], 0), verb
    # nothing was recorded of what no second call would find
    assert prepared.git("status", "--porcelain") == ""


def test_other_data_by_the_change_is_no_change_of_the_code(prepared: Project, run: Run) -> None:
    assert run("baseline", "record", "-q", "--reason", "first").code == 0
    good = prepared.commit()
    prepared.write("prepare.py", PREPARE.replace("read_text())", "read_text() + ' 9')"))
    bad = prepared.commit()
    assert run("gate", "--base", good, "-q").code == 1
    told = "This change selects other data: data/ready, 1 of 1 file (first: losses.txt)."
    for verb in (
        ("diagnose", PACKAGE),
        ("diagnose", "repro-gate-out", "--baseline", ".repro-gate/baseline"),
        ("bisect", "--good", good, "--bad", bad),
    ):
        assert told in words(run(*verb)), verb


def test_a_pass_that_a_threshold_stops_is_shown_as_none(project: Project, run: Run) -> None:
    project.settings("policy: {thresholds: {loss: {max: 1.0}}}\ncost: {when: never}\n")
    record(project, run)
    project.commit()
    assert run("gate", "-q").code == 1
    assert words(run("diagnose", PACKAGE)).startswith("reproduced, failed, commit ")
    assert ": reproduced, failed" in words(run("audit", "--package", PACKAGE))
    assert run("history", "append", "--history", "lines", "--run-id", "1").code == 0
    for verb in (("history", "show"), ("slo",)):
        shown = words(run(*verb, "--history", "lines"))
        # the column is narrower than the words
        assert " reproduced, " in shown
        assert shown.endswith("failed")


def test_runs_that_differ_are_compared_with_no_baseline(project: Project, run: Run) -> None:
    record(project, run)
    project.commit()
    project.play(random=True)
    project.settings("diagnosis: {escalate: false}\n")
    assert run("gate", "-q").code == 1
    told = "nothing was compared with the baseline of commit "
    assert told in words(run("audit", "--package", PACKAGE))
    unsealed = words(run("verify", PACKAGE, *trusted(run)))
    assert "The gate seals only a pass, and only if it is given a key" in unsealed
    again = run("reproduce", PACKAGE, "--unsealed")
    assert "First difference between the runs here: " in words(again)
    assert "with the package as the baseline" not in words(again)
    assert json.loads(run("diagnose", PACKAGE, "--json").out)["outcome"] == "nondeterministic"


def test_after_a_call_that_kept_nothing_its_verdict_is_named(project: Project, run: Run) -> None:
    project.play(exit=1)
    assert run("gate", "-q").code == 3
    for verb in (
        ("diagnose", "repro-gate-out"),
        ("diagnose", "repro-gate-out/evidence"),
        ("diagnose", PACKAGE),
        ("audit", "--package", PACKAGE),
        ("reproduce", PACKAGE, "--unsealed"),
        ("verify", PACKAGE, *trusted(run)),
    ):
        ended = run(*verb)
        assert ended.code == 3, verb
        assert "a call that fails or trains nothing does: its verdict.json says why." in words(
            ended
        ), (verb, words(ended))


def test_verify_and_rollback_say_alike_what_a_pass_was_judged_for(
    project: Project, run: Run
) -> None:
    record(project, run)
    base = project.commit()
    trust = trusted(run)[:2]
    head = project.commit()
    key = ("--signing-key", "../keys/signing-key.pem")
    assert run("gate", "-q", "--base", base, "--out", "../sealed/out", *key).code == 0
    for verb in (
        ("verify", "../sealed/out/package.tar", *trust, "--commit", head),
        ("rollback", "--packages", "../sealed", *trust),
    ):
        assert f" judged for a base commit, at {base}" in words(run(*verb)), verb


VERBS = (
    "gate",
    "run",
    "baseline record",
    "cost",
    "noise",
    "operators",
    "shake",
    "seeds",
)


@each_row("verb", VERBS)
def test_uncommitted_changes_are_answered_with_an_option_that_the_verb_has(
    project: Project, run: Run, verb: str
) -> None:
    project.write("train.py", "changed = True\n")
    ended = run(*verb.split())
    assert (ended.code, "error: the work tree has 1 uncommitted change\n" in ended.err) == (2, True)
    assert ("--allow-dirty" in ended.err) is ("--allow-dirty" in run(*verb.split(), "--help").out)
