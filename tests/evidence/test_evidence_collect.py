from __future__ import annotations

import os

import pytest
from evidence_cases import record_of
from guest_folder import GuestFolder, exact, safetensors_bytes, step_line

from gate.adapters.files.files import LocalFiles
from gate.errors import EvidenceError
from gate.evidence.collect import collect_run
from gate.evidence.saved_state import roots_fit
from gate.records.evidence import RunEvidence
from gate.records.metrics_settings import MetricsSettings
from gate.records.settings import CheckpointExclusion, TrainSettings


def collect(
    guest: GuestFolder,
    label: str = "strict-1",
    *,
    output: bytes = b"",
    printed: int | None = None,
    train: TrainSettings | None = None,
) -> RunEvidence:
    run = record_of(label).model_copy(
        update={"output_bytes": len(output) if printed is None else printed}
    )
    return collect_run(
        files=LocalFiles(),
        run=run,
        out=guest.path,
        workdir_tree=guest.path.parent,
        output=output,
        train=train or train_of(),
    )


def train_of(
    *, file: str | None = None, pattern: str | None = None, checkpoint: str | None = None
) -> TrainSettings:
    return TrainSettings(
        command=("python", "train.py"),
        max_steps=2,
        metrics=MetricsSettings(file=file, stdout_pattern=pattern),
        checkpoint=checkpoint,
    )


def refusal(guest: GuestFolder, label: str = "strict-1", **options: object) -> EvidenceError:
    train = options.get("train")
    with pytest.raises(EvidenceError) as caught:
        collect(guest, label, train=train if isinstance(train, TrainSettings) else None)
    assert caught.value.hint
    return caught.value


def test_a_whole_run_becomes_its_evidence(guest: GuestFolder) -> None:
    guest.whole()
    evidence = collect(guest)
    assert [(point.step, point.value) for point in evidence.metrics[0].points] == [
        (1, 0.5),
        (2, 0.25),
    ]
    assert [step.parameters for step in evidence.steps] == [f"sha256:{n:064x}" for n in (1, 2)]
    assert [(timing.step, timing.seconds) for timing in evidence.timings] == [(2, 0.25)]
    assert [tensor.name for tensor in evidence.checkpoint.tensors] == ["state/model/0/weight"]
    assert evidence.environment.parts["torch"] == "2.13.0"
    assert evidence.processes[0].applied == {"seed": "42"}
    assert (evidence.peak_memory_bytes, evidence.notes) == (1000, ())


def test_other_weights_give_another_root(guest: GuestFolder) -> None:
    guest.whole()
    before = collect(guest).checkpoint.root
    guest.state(b"weighty.")
    assert collect(guest).checkpoint.root != before


def test_all_sources_are_joined(guest: GuestFolder) -> None:
    guest.whole()
    guest.metrics({"name": "accuracy", "step": 2, **exact(0.5)})
    (guest.path.parent / "m.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    (guest.path.parent / "c.bin").write_bytes(safetensors_bytes({"w": ("U8", [1], b"x")}))
    train = train_of(file="m.jsonl", pattern=r"loss (?P<loss>\S+)", checkpoint="c.bin")
    evidence = collect(guest, output=b"loss 1\n", train=train)
    assert [series.name for series in evidence.metrics] == [
        "file.loss", "guest.accuracy", "guest.loss", "stdout.loss",
    ]  # fmt: skip
    assert [tensor.name for tensor in evidence.checkpoint.tensors] == [
        "checkpoint/w", "state/model/0/weight",
    ]  # fmt: skip
    assert roots_fit(evidence.checkpoint)
    assert not roots_fit(evidence.checkpoint.model_copy(update={"root": "0" * 64}))


def test_a_guest_that_was_never_loaded_is_an_error(guest: GuestFolder) -> None:
    error = refusal(guest)
    assert error.message == ("no process of the training loaded the guest, so nothing was observed")
    assert "python -I, -E or -S" in error.hint


def test_a_strict_run_must_have_no_problem(guest: GuestFolder) -> None:
    guest.whole()
    guest.attest(problems=["cudnn.benchmark is\x1b on"])
    error = refusal(guest)
    assert error.message == "the deterministic settings did not take effect (1 problem(s))"
    assert error.details == ("process 11, rank 0: cudnn.benchmark is\\x1b on",)


def test_a_default_run_keeps_its_problems_on_record(guest: GuestFolder) -> None:
    guest.whole(problems=["no memory figures"])
    guest.attest(problems=["x"])
    evidence = collect(guest, "default-1")
    assert evidence.processes[0].problems == ("x",)
    assert evidence.notes == ("rank 0: no memory figures",)


def test_problems_at_the_end_of_a_strict_run_are_an_error(guest: GuestFolder) -> None:
    guest.whole(problems=["the state was not written"])
    error = refusal(guest)
    assert error.message == "the guest could not observe everything (1 problem(s))"
    assert error.details == ("rank 0: the state was not written",)


def test_what_a_strict_run_left_out_is_told_and_no_error(guest: GuestFolder) -> None:
    sentence = "parameter 1 is left out of the digest: FP8 does not name its inner tensors"
    guest.whole(left_out=[sentence])
    guest.of(rank=1).whole(left_out=[sentence, "\x1b"])
    evidence = collect(guest)
    assert evidence.left_out == (sentence, "\\x1b")
    assert evidence.notes == ()


def test_an_attestation_of_another_process_is_refused(guest: GuestFolder) -> None:
    guest.whole()
    guest.attest(pid=12)
    assert refusal(guest).message == "process-r0-11.json: names process 12, rank 0 inside"


def test_a_process_that_stepped_without_attesting_is_an_error(guest: GuestFolder) -> None:
    guest.of(pid=5).attest()
    guest.whole()
    guest.file("process", ".json").unlink()
    assert refusal(guest).message == (
        "process 11, rank 0 took optimizer steps without attesting its settings"
    )


def test_a_script_without_optimizer_steps_is_an_error(guest: GuestFolder) -> None:
    guest.attest()
    guest.steps()
    assert refusal(guest).message == ("the script never calls an optimizer: no step was recorded")


def test_two_training_processes_of_one_rank_are_an_error(guest: GuestFolder) -> None:
    guest.whole()
    guest.of(pid=12).whole()
    assert refusal(guest).message == "2 processes trained without ranks (pids 11, 12)"


def test_rank_0_must_train(guest: GuestFolder) -> None:
    guest.of(rank=1).whole()
    assert refusal(guest).message == "rank 0 took no optimizer step, other ranks did"


@pytest.mark.parametrize("name", ["summary-r0-11.json", "state-r0-11.safetensors"])
def test_a_process_that_did_not_end_in_order_is_an_error(guest: GuestFolder, name: str) -> None:
    guest.whole()
    (guest.path / name).unlink()
    assert refusal(guest).message == (
        f"{name} is missing: the training process did not end in order"
    )


def test_a_state_without_tensors_is_an_error(guest: GuestFolder) -> None:
    guest.whole()
    guest.file("state", ".safetensors").write_bytes(safetensors_bytes({}))
    assert "holds no tensor" in refusal(guest).message


def test_a_missing_step_is_an_error(guest: GuestFolder) -> None:
    guest.whole(steps=3)
    guest.steps(step_line(1), step_line(3))
    assert refusal(guest).message == (
        "steps-r0-11.jsonl: 2 steps up to step 3, and the summary counts 3"
    )


def test_a_step_that_the_summary_does_not_count_is_an_error(guest: GuestFolder) -> None:
    guest.whole(steps=1)
    assert "2 steps up to step 2, and the summary counts 1" in refusal(guest).message


@pytest.mark.parametrize("numbers", [(1, 1), (2, 1)])
def test_a_repeated_step_is_an_error(guest: GuestFolder, numbers: tuple[int, int]) -> None:
    guest.whole()
    guest.steps(*map(step_line, numbers))
    assert "step 1 of optimizer 0 comes twice or too late" in refusal(guest).message


def test_a_run_without_any_metric_is_an_error(guest: GuestFolder) -> None:
    guest.whole()
    guest.steps(step_line(1, loss=None), step_line(2, loss=None))
    assert refusal(guest).message == (
        "the run gave no metric: no loss was seen and none was logged"
    )


def test_a_missing_metrics_file_is_an_error(guest: GuestFolder) -> None:
    guest.whole()
    error = refusal(guest, train=train_of(file="m.jsonl"))
    assert error.message == "m.jsonl: the script left no metrics file there"


def test_a_missing_checkpoint_is_an_error(guest: GuestFolder) -> None:
    guest.whole()
    error = refusal(guest, train=train_of(checkpoint="out/c.pt"))
    assert error.message == "out/c.pt: the script left no checkpoint there"


def test_a_checkpoint_that_is_a_pipe_is_refused(guest: GuestFolder) -> None:
    guest.whole()
    os.mkfifo(guest.path.parent / "c.pt")
    assert "c.pt: cannot be read" in refusal(guest, train=train_of(checkpoint="c.pt")).message


def test_a_checkpoint_may_be_a_folder_without_links(guest: GuestFolder) -> None:
    guest.whole()
    folder = guest.path.parent / "saved"
    folder.mkdir()
    (folder / "a.json").write_text('{"epoch": 3}')
    (folder / "notes.txt").write_text("text")
    evidence = collect(guest, train=train_of(checkpoint="saved"))
    assert [tensor.name for tensor in evidence.checkpoint.tensors] == [
        "checkpoint/a/epoch", "checkpoint/notes", "state/model/0/weight",
    ]  # fmt: skip
    assert evidence.notes == (
        "saved: notes.txt: its content is not understood, so its bytes were compared as they are",
    )
    (folder / "secret").symlink_to("/etc/passwd")
    error = refusal(guest, train=train_of(checkpoint="saved"))
    assert error.message.startswith("saved/secret: cannot be read: ")
    assert "is a link, not a regular file" in error.message


def test_what_the_settings_exclude_from_a_checkpoint_does_not_count(guest: GuestFolder) -> None:
    guest.whole()
    rules = (
        CheckpointExclusion(pattern="/log/**", reason="a log"),
        CheckpointExclusion(pattern="/nothing", reason="was renamed"),
    )
    train = train_of(checkpoint="c.json").model_copy(update={"checkpoint_exclude": rules})

    def collected(seconds: float) -> RunEvidence:
        saved = f'{{"epoch": 3, "log": {{"lag": {seconds}}}}}'
        (guest.path.parent / "c.json").write_text(saved)
        return collect(guest, train=train)

    first, second = collected(1.5), collected(2.5)
    assert first.checkpoint == second.checkpoint
    names = [tensor.name for tensor in first.checkpoint.tensors]
    assert names == ["checkpoint/epoch", "state/model/0/weight"]
    assert first.notes == ("c.json: 1 value(s) left out by /log/**: a log",)
    assert [(unused.key, unused.value) for unused in first.unused_settings] == [
        ("train.checkpoint_exclude", "/nothing")
    ]


def test_output_is_kept_up_to_the_limit_of_the_settings(guest: GuestFolder) -> None:
    guest.whole()
    train = train_of(pattern="loss (?P<loss>[0-9.]+)")
    wide = train.model_copy(update={"output_limit_bytes": 8192})
    narrow = train.model_copy(update={"output_limit_bytes": 4096})
    names = [
        series.name
        for series in collect(guest, output=b"loss 1\n", printed=5000, train=wide).metrics
    ]
    assert "stdout.loss" in names
    with pytest.raises(EvidenceError, match="printed 5,000 bytes, of which 4,096 were kept"):
        collect(guest, output=b"loss 1\n", printed=5000, train=narrow)


def test_metrics_are_not_read_from_cut_output(guest: GuestFolder) -> None:
    guest.whole()
    with pytest.raises(EvidenceError, match="the script printed 2,000,000 bytes, of which"):
        collect(guest, output=b"loss 1\n", printed=2_000_000, train=train_of(pattern="(?P<a>1)"))


def test_two_optimizers_share_a_step(guest: GuestFolder) -> None:
    guest.whole()
    second = {"optimizer": 1, "seconds": 0.5, "parameters": "sha256:ff"}
    guest.steps(step_line(1), step_line(1, **second), step_line(2), step_line(2, **second))
    evidence = collect(guest)
    assert [series.name for series in evidence.metrics] == ["guest.loss", "guest.loss.1"]
    assert [(timing.step, timing.seconds) for timing in evidence.timings] == [(2, 0.75)]
    assert len(evidence.steps) == 2
    assert evidence.steps[0].parameters.startswith("sha256:")


def test_the_order_of_two_optimizers_counts(guest: GuestFolder) -> None:
    guest.whole(steps=1)
    lines = (step_line(1), step_line(1, optimizer=1))
    guest.steps(*lines)
    before = collect(guest).steps
    guest.steps(*reversed(lines))
    assert collect(guest).steps != before


def test_every_rank_is_part_of_the_evidence(guest: GuestFolder) -> None:
    guest.whole()
    guest.of(rank=1, pid=12).whole(peak_memory_bytes=2000)
    evidence = collect(guest)
    assert [tensor.name for tensor in evidence.checkpoint.tensors] == [
        "state.rank1/model/0/weight", "state/model/0/weight",
    ]  # fmt: skip
    assert [process.rank for process in evidence.processes] == [0, 1]
    assert evidence.peak_memory_bytes == 2000
    guest.of(rank=1, pid=12).steps(step_line(1), step_line(2, parameters="sha256:00"))
    changed = collect(guest).steps
    assert [step == other for step, other in zip(evidence.steps, changed, strict=True)] == [
        True,
        False,
    ]


def test_ranks_in_other_places_are_told_one_after_the_other(guest: GuestFolder) -> None:
    guest.whole(environment={"device": "NVIDIA A10", "world_size": "2"})
    guest.of(rank=1, pid=12).whole(environment={"device": "cpu", "world_size": "2"})
    parts = collect(guest).environment.parts
    assert parts == {"device": "NVIDIA A10 | cpu", "world_size": "2"}


def test_each_gpu_that_a_process_attests_is_kept(guest: GuestFolder) -> None:
    guest.whole()
    seen = {"index": 1, "name": "A", "capability": "9.0", "multiprocessors": 132}
    guest.attest(devices=[{**seen, "memory_bytes": 80, "slice": "1g.10gb", "used": True}])
    (device,) = collect(guest).processes[0].devices
    assert (device.index, device.slice, device.used) == (1, "1g.10gb", True)


def test_ranks_must_take_the_same_steps(guest: GuestFolder) -> None:
    guest.whole()
    other = guest.of(rank=1, pid=12)
    other.whole(steps=1)
    other.steps(step_line(1))
    assert refusal(guest).message == "rank 1 took 1 steps, rank 0 took 2"
