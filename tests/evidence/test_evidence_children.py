from __future__ import annotations

import pytest
from evidence_cases import record_of
from harness_folder import HarnessFolder, child_line

from gate.errors import EvidenceError
from gate.evidence.collect import collect_run
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import TrainSettings
from gate.system.files.files import LocalFiles


def collect(harness: HarnessFolder) -> RunEvidence:
    return collect_run(
        files=LocalFiles(),
        run=record_of("strict-1"),
        out=harness.path,
        workdir_tree=harness.path.parent,
        output=b"",
        train=TrainSettings(command=("python", "train.py"), max_steps=2),
    )


def told(harness: HarnessFolder, line: dict[str, object]) -> list[tuple[str, str]]:
    """Commands and the first word of each reason."""
    harness.whole()
    harness.children(line)
    return [(child.command, child.reason.split()[0]) for child in collect(harness).children]


def refusal(harness: HarnessFolder) -> EvidenceError:
    with pytest.raises(EvidenceError) as caught:
        collect(harness)
    return caught.value


def test_a_child_with_the_harness_and_without_a_variable_is_one_of_its_own(
    harness: HarnessFolder,
) -> None:
    harness.whole()
    harness.children(child_line("python", "train.py", lost=["PYTHONHASHSEED"]))
    found = collect(harness)
    assert found.children == ()
    (child,) = found.weaker_children
    assert (child.place, child.variables) == ("train.py:5", ("PYTHONHASHSEED",))


def test_a_child_without_the_harness_is_told_as_that_alone(harness: HarnessFolder) -> None:
    harness.whole()
    harness.children(child_line("python", "-I", "train.py", lost=["PYTHONHASHSEED"]))
    found = collect(harness)
    assert (len(found.children), found.weaker_children) == (1, ())


@pytest.mark.parametrize(
    ("command", "shown", "reason"),
    [
        ("/usr/bin/python3.11 -I train.py --key secret", "python3.11 -I train.py", "runs"),
        ("python -uE -W error train.py", "python -uE train.py", "ignores"),
        ("python -Sc pass", "python -S -c ...", "does"),
        ("pypy3 -X dev -I -m train -v", "pypy3 -I -m train", "runs"),
        ("env -i A=1 python train.py", "python train.py", "gets"),
        ("env PYTHONPATH=src python train.py", "python train.py", "gets"),
        ("timeout -k 5 10s nice -n 5 python -I", "python -I", "runs"),
    ],
)
def test_a_command_that_shuts_the_harness_out_is_told_without_its_arguments(
    harness: HarnessFolder, command: str, shown: str, reason: str
) -> None:
    assert told(harness, child_line(*command.split())) == [(shown, reason)]


@pytest.mark.parametrize(
    "command",
    [
        "python train.py -I",
        "python -c pass -S",
        "python -m train -E",
        "git commit -I python",
        "env A=1 PYTHONPATH=src:$PYTHONPATH python train.py",
        "bash train.sh -c python",
        "gcc -I /usr/include/python3.11 -I .",
        "env",
    ],
)
def test_a_command_that_brings_the_harness_along_is_passed_over(
    harness: HarnessFolder, command: str
) -> None:
    assert told(harness, child_line(*command.split())) == []


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("cd x && python -I a.py; python b.py", ["python -I a.py"]),
        ("unset PYTHONPATH\npython a.py | tee log", ["python a.py"]),
        ("export PYTHONPATH=src; python a.py", ["python a.py"]),
        ("export PYTHONPATH=src:$PYTHONPATH; python a.py", []),
        ("PYTHONPATH= python a.py & python b.py", ["python a.py"]),
        ("bash -lc 'python -I \"a b.py\"'", ["python -I a"]),
        ("python -S a.py 'never ends", ["python -S a.py"]),
        ("if true; then python -I a.py; fi", ["python -I a.py"]),
        ("PYTHONPATH=src; export PYTHONPATH; python a.py", ["python a.py"]),
        ("PYTHONPATH=src:$PYTHONPATH; export PYTHONPATH; python a.py", []),
        ("PYTHONPATH=$PWD python a.py", ["python a.py"]),
        ("env -u PYTHONPATH python a.py", ["python a.py"]),
        ("PYTHONPATH= \\\n  python<a.py", ["python a.py"]),
        ("A=$(python -E a.py)", ["python -E a.py"]),
        ("ls a.txt | xargs -n 1 python -I", ["python -I"]),
        ("echo python -I; which python -I; gcc -I /usr/include/python3.11 -I .", []),
        ("which pip; python -I a.py", ["python -I a.py"]),
        ("sh -c 'sh -c \"sh -c python\\ -I\"'", []),
        ("", []),
    ],
)
def test_a_shells_line_is_looked_at_command_by_command(
    harness: HarnessFolder, line: str, shown: list[str]
) -> None:
    found = told(harness, child_line(line) | {"shell": True})
    assert [command for command, _ in found] == shown


def test_an_environment_without_the_gates_variables_counts_for_python_alone(
    harness: HarnessFolder,
) -> None:
    line = child_line("python", "train.py", kept=False)
    assert told(harness, line) == [("python train.py", "was")]
    assert told(harness, child_line("git", "gc", kept=False)) == []


def test_a_launcher_without_torch_may_tell_of_its_children(harness: HarnessFolder) -> None:
    harness.whole()
    harness.of(pid=7).children(child_line("python", "-I", "x.py"))
    (child,) = collect(harness).children
    assert (child.pid, child.place) == (7, "train.py:5")


def test_a_hostile_name_is_defused(harness: HarnessFolder) -> None:
    harness.whole()
    harness.children(child_line("python", "-I", "\x1b[31m" * 400, file="\x07"))
    (child,) = collect(harness).children
    assert child.command.isprintable()
    assert len(child.command) == 200
    assert child.file == "\\x07"


@pytest.mark.parametrize("fault", [{"line": -1}, {"file": "x" * 201}, {"words": 3}, {"more": 1}])
def test_a_malformed_line_is_an_error(harness: HarnessFolder, fault: dict[str, object]) -> None:
    harness.whole()
    harness.children(child_line("python", **fault))
    assert refusal(harness).message == "children-r0-11.jsonl: line 1: 1 error"


def test_a_file_longer_than_the_harnesss_own_limit_is_an_error(harness: HarnessFolder) -> None:
    harness.whole()
    harness.children(*[child_line("python")] * 201)
    assert "201 lines, the harness writes 200 at most" in refusal(harness).message


def test_a_run_that_nobody_attested_is_explained_by_the_child(harness: HarnessFolder) -> None:
    harness.children(child_line("python", "-I", "inner.py"))
    error = refusal(harness)
    assert error.message == "no process of the training loaded the harness, so nothing was observed"
    assert (error.hint or "").startswith(
        "train.py:5 started `python -I inner.py`, which runs in isolated mode and ignores "
        "PYTHONPATH. "
    )


def test_a_run_without_steps_is_explained_by_the_child(harness: HarnessFolder) -> None:
    harness.attest()
    harness.children(child_line("python", "inner.py", kept=False))
    error = refusal(harness)
    assert error.message == (
        "no step was recorded, and the training started Python without the harness"
    )
    assert "which was given an environment that lacks the gate's variables" in (error.hint or "")
