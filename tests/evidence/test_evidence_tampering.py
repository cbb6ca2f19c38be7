from __future__ import annotations

import pytest
from evidence_cases import record_of
from guest_folder import GuestFolder, tamper_line

from gate.adapters.files.files import LocalFiles
from gate.errors import EvidenceError
from gate.evidence.collect import collect_run
from gate.evidence.shut_out import GENERAL, shut_out_by
from gate.evidence.tampering import refuse_tampering
from gate.records.determinism_settings import Tamper
from gate.records.evidence import RunEvidence
from gate.records.settings import TrainSettings


def collect(
    guest: GuestFolder, label: str = "strict-1", argv: tuple[str, ...] = ("python", "train.py")
) -> RunEvidence:
    return collect_run(
        files=LocalFiles(),
        run=record_of(label).model_copy(update={"argv": argv}),
        out=guest.path,
        workdir_tree=guest.path.parent,
        output=b"",
        train=TrainSettings(command=("python", "train.py"), max_steps=2),
    )


def refusal(guest: GuestFolder, label: str = "strict-1") -> EvidenceError:
    with pytest.raises(EvidenceError) as caught:
        collect(guest, label)
    return caught.value


def test_deeds_are_read_with_their_process_and_counted(guest: GuestFolder) -> None:
    guest.whole(tampered=7)
    guest.tamper(tamper_line(), tamper_line(step=4))
    evidence = collect(guest)
    assert evidence.tampered == 7
    first = evidence.tampering[0]
    assert (first.rank, first.pid, first.place, first.step) == (0, 11, "train.py:12", 3)
    assert first.weakens


def test_hostile_names_are_defused(guest: GuestFolder) -> None:
    guest.whole()
    guest.tamper(tamper_line(file="\x1b[31m" * 30, after="\x07"))
    (deed,) = collect(guest).tampering
    assert deed.after == "\\x07"
    assert len(deed.file) == 200
    assert deed.file.isprintable()


@pytest.mark.parametrize(
    "fault", [{"kind": "else"}, {"line": -1}, {"step": 0}, {"file": "x" * 201}, {"more": 1}]
)
def test_a_malformed_line_is_an_error(guest: GuestFolder, fault: dict[str, object]) -> None:
    guest.whole()
    guest.tamper(tamper_line(**fault))
    assert refusal(guest).message == "tamper-r0-11.jsonl: line 1: 1 fault(s)"


def test_a_log_longer_than_the_guests_own_limit_is_an_error(guest: GuestFolder) -> None:
    guest.whole()
    guest.tamper(*[tamper_line()] * 201)
    assert "201 lines, the guest writes 200 at most" in refusal(guest).message


def test_the_mode_fail_makes_an_error_of_it_in_strict_runs_alone(guest: GuestFolder) -> None:
    guest.whole()
    guest.tamper(tamper_line(), tamper_line(kind="environment", name="nccl_algorithm", after=""))
    with pytest.raises(EvidenceError) as caught:
        refuse_tampering(collect(guest), Tamper.FAIL)
    assert caught.value.message == (
        "run strict-1: the training turned back what the gate had set (2 time(s))"
    )
    assert caught.value.details == (
        "train.py:12, step 3: cudnn_benchmark from off to on",
        "train.py:12, step 3: nccl_algorithm from off to unset",
    )
    refuse_tampering(collect(guest), Tamper.OBSERVE)
    refuse_tampering(collect(guest), Tamper.RESTORE)
    refuse_tampering(collect(guest, "default-1"), Tamper.FAIL)


def test_a_hole_and_a_seed_of_ones_own_are_a_right_in_every_mode(guest: GuestFolder) -> None:
    guest.whole()
    guest.tamper(
        tamper_line(name="deterministic_algorithms", closed=True),
        tamper_line(kind="reseed", name="torch.manual_seed"),
    )
    refuse_tampering(collect(guest), Tamper.FAIL)


def test_a_seed_from_outside_is_no_right(guest: GuestFolder) -> None:
    guest.whole()
    guest.tamper(tamper_line(kind="entropy", name="random.seed"))
    with pytest.raises(EvidenceError):
        refuse_tampering(collect(guest), Tamper.FAIL)


def test_evidence_of_a_process_that_did_not_attest_is_an_error(guest: GuestFolder) -> None:
    guest.whole()
    guest.of(pid=12).tamper(tamper_line())
    assert refusal(guest).message == (
        "process 12, rank 0 wrote evidence without attesting its settings"
    )


@pytest.mark.parametrize("label", ["strict-1", "default-1"])
def test_attesting_after_cuda_has_started_is_an_error(guest: GuestFolder, label: str) -> None:
    guest.whole()
    guest.attest(late=True)
    error = refusal(guest, label)
    assert error.message == "CUDA was started before the guest could set anything (1 problem(s))"
    assert error.details == ("process 11, rank 0",)


def test_an_attestation_tells_before_device_and_versions(guest: GuestFolder) -> None:
    guest.whole()
    guest.attest(before={"cudnn_benchmark": "on"}, device="cpu", versions={"torch": "2"})
    (process,) = collect(guest).processes
    assert (process.before, process.device) == ({"cudnn_benchmark": "on"}, "cpu")
    assert process.versions == {"torch": "2"}


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (
            "python -I train.py",
            "python -I runs isolated and ignores PYTHONPATH, so the guest stays out: drop -I.",
        ),
        ("/usr/bin/python3.11 -uE train.py", "/usr/bin/python3.11 -E ignores PYTHONPATH and"),
        ("env A=1 python -W error -S -m train", "python -S does not run sitecustomize"),
        ("python -X dev -Xutf8 -I -c pass", "python -I runs isolated"),
        ("env -i python train.py", "env -i clears the environment, PYTHONPATH too"),
        ("python train.py -I", GENERAL),
        ("python -m train -S", GENERAL),
        ("bash train.sh", GENERAL),
        ("python", GENERAL),
    ],
)
def test_the_command_itself_explains_why_no_guest_came(argv: str, hint: str) -> None:
    assert shut_out_by(tuple(argv.split())).startswith(hint)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("cd src && python -I a.py", "python -I a.py runs isolated and ignores PYTHONPATH, so"),
        ("PYTHONPATH=src python a.py", "python a.py gets no PYTHONPATH of the gate's: add to it"),
        ("python a.py", GENERAL),
    ],
)
def test_a_shells_line_explains_it_too(line: str, hint: str) -> None:
    assert shut_out_by(("sh", "-c", line)).startswith(hint)


def test_an_unobserved_run_is_told_what_kept_the_guest_out(guest: GuestFolder) -> None:
    with pytest.raises(EvidenceError) as caught:
        collect(guest, argv=("python", "-I", "train.py"))
    assert caught.value.message == (
        "no process of the training loaded the guest, so nothing was observed"
    )
    assert "drop -I" in caught.value.hint
