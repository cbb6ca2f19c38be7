from __future__ import annotations

import pytest
from each_row import each_row
from evidence_cases import record_of
from harness_folder import HarnessFolder, override_line

from gate.errors import EvidenceError
from gate.evidence.collect import collect_run
from gate.evidence.operator_logs import refuse_overrides
from gate.evidence.python_processes import GENERAL, shut_out_by
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import TrainSettings
from gate.settings.train_sections import OnOverride
from gate.system.files.files import LocalFiles


def collect(
    harness: HarnessFolder, label: str = "strict-1", argv: tuple[str, ...] = ("python", "train.py")
) -> RunEvidence:
    return collect_run(
        files=LocalFiles(),
        run=record_of(label).model_copy(update={"argv": argv}),
        out=harness.path,
        workdir_tree=harness.path.parent,
        output=b"",
        train=TrainSettings(command=("python", "train.py"), max_steps=2),
    )


def refusal(harness: HarnessFolder, label: str = "strict-1") -> EvidenceError:
    with pytest.raises(EvidenceError) as caught:
        collect(harness, label)
    return caught.value


def test_deeds_are_read_with_their_process_and_counted(harness: HarnessFolder) -> None:
    harness.whole(overridden=7)
    harness.overrides(override_line(), override_line(step=4))
    evidence = collect(harness)
    assert evidence.overridden == 7
    first = evidence.overrides[0]
    assert (first.rank, first.pid, first.place, first.step) == (0, 11, "train.py:12", 3)
    assert first.weakens


def test_hostile_names_are_defused(harness: HarnessFolder) -> None:
    harness.whole()
    harness.overrides(override_line(file="\x1b[31m" * 30, after="\x07"))
    (override,) = collect(harness).overrides
    assert override.after == "\\x07"
    assert len(override.file) == 200
    assert override.file.isprintable()


@pytest.mark.parametrize(
    "fault", [{"kind": "else"}, {"line": -1}, {"step": 0}, {"file": "x" * 201}, {"more": 1}]
)
def test_a_malformed_line_is_an_error(harness: HarnessFolder, fault: dict[str, object]) -> None:
    harness.whole()
    harness.overrides(override_line(**fault))
    assert refusal(harness).message == "overrides-r0-11.jsonl: line 1: 1 error"


def test_a_log_longer_than_the_harnesss_own_limit_is_an_error(harness: HarnessFolder) -> None:
    harness.whole()
    harness.overrides(*[override_line()] * 201)
    assert "201 lines, the harness writes 200 at most" in refusal(harness).message


def test_the_mode_fail_makes_an_error_of_it_in_strict_runs_alone(harness: HarnessFolder) -> None:
    harness.whole()
    harness.overrides(
        override_line(), override_line(kind="environment", name="nccl_algorithm", after="")
    )
    with pytest.raises(EvidenceError) as caught:
        refuse_overrides(collect(harness), OnOverride.FAIL)
    assert caught.value.message == (
        "run strict-1: the training overrode what the gate had set (2 times)"
    )
    assert caught.value.details == (
        "train.py:12, step 3: cudnn_benchmark from off to on",
        "train.py:12, step 3: nccl_algorithm from off to unset",
    )
    refuse_overrides(collect(harness), OnOverride.OBSERVE)
    refuse_overrides(collect(harness), OnOverride.RESTORE)
    refuse_overrides(collect(harness, "default-1"), OnOverride.FAIL)


def test_a_hole_and_a_seed_of_ones_own_are_a_right_in_every_mode(harness: HarnessFolder) -> None:
    harness.whole()
    harness.overrides(
        override_line(name="deterministic_algorithms", closed=True),
        override_line(kind="reseed", name="torch.manual_seed"),
    )
    refuse_overrides(collect(harness), OnOverride.FAIL)


def test_a_seed_from_outside_is_no_right(harness: HarnessFolder) -> None:
    harness.whole()
    harness.overrides(override_line(kind="entropy", name="random.seed"))
    with pytest.raises(EvidenceError):
        refuse_overrides(collect(harness), OnOverride.FAIL)


def test_evidence_of_a_process_that_did_not_attest_is_an_error(harness: HarnessFolder) -> None:
    harness.whole()
    harness.of(pid=12).overrides(override_line())
    assert refusal(harness).message == (
        "process 12, rank 0 wrote evidence without attesting its settings"
    )


@pytest.mark.parametrize("label", ["strict-1", "default-1"])
def test_attesting_after_cuda_has_started_is_an_error(harness: HarnessFolder, label: str) -> None:
    harness.whole()
    harness.attest(late=True)
    error = refusal(harness, label)
    assert error.message == "CUDA was initialized before the harness could set anything (1 problem)"
    assert error.details == ("process 11, rank 0",)


def test_an_attestation_tells_before_device_and_versions(harness: HarnessFolder) -> None:
    harness.whole()
    harness.attest(before={"cudnn_benchmark": "on"}, device="cpu", versions={"torch": "2"})
    (process,) = collect(harness).processes
    assert (process.before, process.device) == ({"cudnn_benchmark": "on"}, "cpu")
    assert process.versions == {"torch": "2"}


@each_row(
    ("argv", "hint"),
    [
        (
            "python -I train.py",
            (
                "python -I train.py runs in isolated mode and ignores PYTHONPATH, so the harness "
                "is not loaded"
            ),
        ),
        ("/usr/bin/python3.11 -uE train.py", "python3.11 -uE train.py ignores PYTHONPATH and"),
        ("env A=1 python -W error -S -m train", "python -S -m train does not run sitecustomize"),
        ("python -X dev -Xutf8 -I -c pass", "python -I -c ... runs in isolated mode"),
        ("env -i python train.py", "python train.py gets an empty environment"),
        ("python train.py -I", GENERAL),
        ("python -m train -S", GENERAL),
        ("bash train.sh", GENERAL),
        ("python", GENERAL),
    ],
)
def test_the_command_itself_explains_why_no_harness_came(argv: str, hint: str) -> None:
    assert shut_out_by(tuple(argv.split())).startswith(hint)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (
            "cd src && python -I a.py",
            "python -I a.py runs in isolated mode and ignores PYTHONPATH, so",
        ),
        (
            "PYTHONPATH=src python a.py",
            "python a.py gets an empty environment or a different PYTHONPATH",
        ),
        ("python a.py", GENERAL),
    ],
)
def test_a_shells_line_explains_it_too(line: str, hint: str) -> None:
    assert shut_out_by(("sh", "-c", line)).startswith(hint)


def test_an_unobserved_run_is_told_what_kept_the_harness_out(harness: HarnessFolder) -> None:
    with pytest.raises(EvidenceError) as caught:
        collect(harness, argv=("python", "-I", "train.py"))
    assert caught.value.message == (
        "no process of the training loaded the harness, so nothing was observed"
    )
    assert "drop -I" in caught.value.hint
