from __future__ import annotations

import os

import pytest
from evidence_cases import record_of
from harness_folder import HarnessFolder, exact, safetensors_bytes, step_line

from gate.errors import EvidenceError
from gate.evidence.capture import roots_fit
from gate.evidence.collect import collect_run
from gate.evidence.metric_series import output_metrics, pattern_of_a_printed_number
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import CheckpointExclusion, TrainSettings
from gate.settings.train_sections import MetricsSettings
from gate.system.files.files import LocalFiles


def collect(
    harness: HarnessFolder,
    label: str = "strict-1",
    *,
    output: bytes = b"",
    printed: int | None = None,
    train: TrainSettings | None = None,
    argv: tuple[str, ...] = ("python", "train.py"),
) -> RunEvidence:
    run = record_of(label).model_copy(
        update={"output_bytes": len(output) if printed is None else printed, "argv": argv}
    )
    return collect_run(
        files=LocalFiles(),
        run=run,
        out=harness.path,
        workdir_tree=harness.path.parent,
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


def refusal(
    harness: HarnessFolder,
    label: str = "strict-1",
    *,
    argv: tuple[str, ...] = ("python", "train.py"),
    **options: object,
) -> EvidenceError:
    train, output = options.get("train"), options.get("output", b"")
    assert isinstance(output, bytes)
    with pytest.raises(EvidenceError) as caught:
        collect(
            harness,
            label,
            output=output,
            train=train if isinstance(train, TrainSettings) else None,
            argv=argv,
        )
    assert caught.value.hint
    return caught.value


def test_parameters_are_called_by_leaves_of_the_state_and_by_nothing_else(
    harness: HarnessFolder,
) -> None:
    names = {"0/0": "model/0/weight", "0/1": "model/0/<b>none</b>"}
    harness.whole(parameter_names=names)
    assert collect(harness).parameter_names == {"state/optimizer/0/state/0": "state/model/0/weight"}


def test_each_rank_calls_its_parameters_by_its_own_leaves(harness: HarnessFolder) -> None:
    harness.whole(parameter_names={"0/0": "model/0/weight"})
    harness.of(rank=1, pid=12).whole(parameter_names={"0/7": "model/0/weight", "0/8": "model/1/w"})
    assert collect(harness).parameter_names == {
        "state/optimizer/0/state/0": "state/model/0/weight",
        "state.rank1/optimizer/0/state/7": "state.rank1/model/0/weight",
    }


@pytest.mark.parametrize(
    "names",
    [
        {"../0": "model/0/weight"},
        {"0/0": "x" * 201},
        {f"0/{number}": "model/0/weight" for number in range(1001)},
    ],
)
def test_names_of_parameters_that_the_harness_cannot_have_written_are_refused(
    harness: HarnessFolder, names: dict[str, str]
) -> None:
    harness.whole(parameter_names=names)
    assert "parameter_names" in " ".join(refusal(harness).details)


def test_a_whole_run_becomes_its_evidence(harness: HarnessFolder) -> None:
    harness.whole()
    evidence = collect(harness)
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


def test_other_weights_give_another_root(harness: HarnessFolder) -> None:
    harness.whole()
    before = collect(harness).checkpoint.root
    harness.state(b"weighty.")
    assert collect(harness).checkpoint.root != before


def test_all_sources_are_joined(harness: HarnessFolder) -> None:
    harness.whole()
    harness.metrics({"name": "accuracy", "step": 2, **exact(0.5)})
    (harness.path.parent / "m.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    (harness.path.parent / "c.bin").write_bytes(safetensors_bytes({"w": ("U8", [1], b"x")}))
    train = train_of(file="m.jsonl", pattern=r"loss (?P<loss>\S+)", checkpoint="c.bin")
    evidence = collect(harness, output=b"loss 1\n", train=train)
    assert [series.name for series in evidence.metrics] == [
        "file.loss", "logged.accuracy", "loss", "stdout.loss",
    ]  # fmt: skip
    assert [tensor.name for tensor in evidence.checkpoint.tensors] == [
        "checkpoint/w", "state/model/0/weight",
    ]  # fmt: skip
    assert roots_fit(evidence.checkpoint)
    assert not roots_fit(evidence.checkpoint.model_copy(update={"root": "0" * 64}))


def test_a_harness_that_was_never_loaded_is_an_error(harness: HarnessFolder) -> None:
    error = refusal(harness)
    assert error.message == (
        "no process of the training loaded the harness, so nothing was observed"
    )
    assert "python -I, -E or -S" in error.hint


def test_a_strict_run_must_have_no_problem(harness: HarnessFolder) -> None:
    harness.whole()
    harness.attest(problems=["cudnn.benchmark is\x1b on"])
    error = refusal(harness)
    assert error.message == "the deterministic settings did not take effect (1 problem)"
    assert error.details == ("process 11, rank 0: cudnn.benchmark is\\x1b on",)


def test_a_default_run_keeps_its_problems_on_record(harness: HarnessFolder) -> None:
    harness.whole(problems=["no memory figures"])
    harness.attest(problems=["x"])
    evidence = collect(harness, "default-1")
    assert evidence.processes[0].problems == ("x",)
    assert evidence.notes == ("rank 0: no memory figures",)


def test_problems_at_the_end_of_a_strict_run_are_an_error(harness: HarnessFolder) -> None:
    harness.whole(problems=["the state was not written"])
    error = refusal(harness)
    assert error.message == "the harness could not observe everything (1 problem)"
    assert error.details == ("rank 0: the state was not written",)


def test_what_a_strict_run_left_out_is_told_and_no_error(harness: HarnessFolder) -> None:
    sentence = "parameter 1 is left out of the digest: FP8 does not name its inner tensors"
    harness.whole(left_out=[sentence])
    harness.of(rank=1).whole(left_out=[sentence, "\x1b"])
    evidence = collect(harness)
    assert evidence.left_out == (sentence, "\\x1b")
    assert evidence.notes == ()


def test_an_attestation_of_another_process_is_refused(harness: HarnessFolder) -> None:
    harness.whole()
    harness.attest(pid=12)
    assert refusal(harness).message == "process-r0-11.json: names process 12, rank 0 inside"


def test_a_process_that_stepped_without_attesting_is_an_error(harness: HarnessFolder) -> None:
    harness.of(pid=5).attest()
    harness.whole()
    harness.file("process", ".json").unlink()
    assert refusal(harness).message == (
        "process 11, rank 0 took optimizer steps without attesting its settings"
    )


def test_a_script_without_optimizer_steps_is_an_error(harness: HarnessFolder) -> None:
    harness.attest()
    harness.steps()
    error = refusal(harness, output=b"hello\nno GPU here, leaving\n")
    assert error.message == "the script exited with 0 before any optimizer step"
    assert error.details == ("hello", "no GPU here, leaving")


@pytest.mark.parametrize(
    ("told", "message", "hint"),
    [
        (
            {"torch": False, "imported": ("numpy", "sklearn")},
            "the script never imported torch",
            "The gate judges PyTorch trainings only. It imported scikit-learn.",
        ),
        (
            {"torch": False, "imported": ("numpy",)},
            "the script never imported torch",
            "It imported NumPy.",
        ),
        (
            {"stopped": True, "backwards": 2000},
            "the script never called an optimizer in 2,000 backward passes",
            "update them with a torch optimizer",
        ),
        (
            {"imported": ("keras",)},
            "the script exited with 0 before any optimizer step",
            "Keras has optimizers of its own",
        ),
        (
            {"imported": ("scipy.optimize",)},
            "the script exited with 0 before any optimizer step",
            "SciPy's optimizers (BoTorch fits by them) take no torch step",
        ),
    ],
)
def test_a_run_without_a_step_says_what_it_did_in_its_place(
    harness: HarnessFolder, told: dict[str, object], message: str, hint: str
) -> None:
    if told.get("torch", True):
        harness.attest()
    harness.untrained(**told)
    error = refusal(harness, output=b"bye\n")
    assert error.message == message
    assert hint in error.hint
    assert error.details == ("bye",)


@pytest.mark.parametrize("argv", [("make", "train"), ("./run.sh", "--fast")])
def test_a_makefile_may_start_the_training_without_the_harness(
    harness: HarnessFolder, argv: tuple[str, ...]
) -> None:
    harness.untrained(torch=False, imported=("numpy",))
    error = refusal(harness, output=b"loss 0.5\n", argv=argv)
    assert error.message == "no process that loaded the harness imported torch"
    assert error.hint.startswith(f"{' '.join(argv)} may start the training without the harness.")
    assert "PYTHONPATH=src:$PYTHONPATH" in error.hint
    assert error.details == ("loss 0.5",)


def test_stages_one_after_the_other_are_not_called_a_race(harness: HarnessFolder) -> None:
    # the first makes its two steps from 10 to 10.25
    harness.whole(first_step_clock_seconds=10.0)
    harness.of(pid=12).whole(first_step_clock_seconds=20.0)
    error = refusal(harness)
    assert error.message == "2 processes trained one after the other (pids 11, 12)"
    assert "The gate judges one training a call" in error.hint


def test_stages_that_overlap_race(harness: HarnessFolder) -> None:
    harness.whole(first_step_clock_seconds=10.0)
    harness.of(pid=12).whole(first_step_clock_seconds=10.1)
    assert refusal(harness).message == "2 processes trained without ranks (pids 11, 12)"


def test_two_training_processes_of_one_rank_are_an_error(harness: HarnessFolder) -> None:
    harness.whole()
    harness.of(pid=12).whole()
    assert refusal(harness).message == "2 processes trained without ranks (pids 11, 12)"


def test_rank_0_must_train(harness: HarnessFolder) -> None:
    harness.of(rank=1).whole()
    assert refusal(harness).message == "rank 0 took no optimizer step, other ranks did"


@pytest.mark.parametrize("name", ["summary-r0-11.json", "state-r0-11.safetensors"])
def test_a_process_that_did_not_end_in_order_is_an_error(harness: HarnessFolder, name: str) -> None:
    harness.whole()
    (harness.path / name).unlink()
    assert refusal(harness).message == (
        f"{name} is missing: the training process did not exit cleanly"
    )


def test_a_state_without_tensors_is_an_error(harness: HarnessFolder) -> None:
    harness.whole()
    harness.file("state", ".safetensors").write_bytes(safetensors_bytes({}))
    assert "holds no tensor" in refusal(harness).message


def test_a_missing_step_is_an_error(harness: HarnessFolder) -> None:
    harness.whole(steps=3)
    harness.steps(step_line(1), step_line(3))
    assert refusal(harness).message == (
        "steps-r0-11.jsonl: 2 steps up to step 3, and the summary counts 3"
    )


def test_a_step_that_the_summary_does_not_count_is_an_error(harness: HarnessFolder) -> None:
    harness.whole(steps=1)
    assert "2 steps up to step 2, and the summary counts 1" in refusal(harness).message


@pytest.mark.parametrize("numbers", [(1, 1), (2, 1)])
def test_a_repeated_step_is_an_error(harness: HarnessFolder, numbers: tuple[int, int]) -> None:
    harness.whole()
    harness.steps(*map(step_line, numbers))
    assert "step 1 of optimizer 0 is repeated or out of order" in refusal(harness).message


def test_a_run_without_any_metric_is_an_error(harness: HarnessFolder) -> None:
    harness.whole()
    harness.steps(step_line(1, loss=None), step_line(2, loss=None))
    error = refusal(harness)
    assert error.message == "the run has no metric: no loss was recorded and none was logged"
    assert "train.metrics.stdout_pattern for printed numbers" in error.hint


PRINTED_LINES = {
    "step=3 loss=1.0986": {"loss": 1.0986},
    "acc: 0.50 (train loss: 2.5e-1)": {"loss": 0.25},
    "lr=0.1 val/acc = -0.75": {"val_acc": -0.75},
    "loss: 1.5\nloss: nan": {"loss": 1.5},
}


@pytest.mark.parametrize("line", PRINTED_LINES)
def test_without_a_metric_the_hint_has_a_pattern_for_what_is_printed(line: str) -> None:
    pattern = pattern_of_a_printed_number(line.encode())
    assert pattern is not None
    settings = MetricsSettings(stdout_pattern=pattern)
    assert settings.stdout_pattern == pattern
    read = output_metrics(pattern, line.encode())
    assert {series.name: series.points[0].value for series in read.series} == {
        f"stdout.{name}": value for name, value in PRINTED_LINES[line].items()
    }


def test_the_hint_of_a_run_without_a_metric_can_be_copied(harness: HarnessFolder) -> None:
    harness.whole()
    harness.steps(step_line(1, loss=None), step_line(2, loss=None))
    assert refusal(harness, output=b"step 1 loss=0.5\n").hint.endswith(
        r"For what this script prints: stdout_pattern: 'loss\s*=\s*(?P<loss>[-+.\deE]+|"
        r"[-+]?(?:nan|inf))'"
    )


def test_no_pattern_is_proposed_for_progress_and_versions() -> None:
    assert pattern_of_a_printed_number(b"torch 2.13.0 lr=0.5 time: 3.25 done") is None


def test_a_missing_metrics_file_is_an_error(harness: HarnessFolder) -> None:
    harness.whole()
    error = refusal(harness, train=train_of(file="m.jsonl"))
    assert error.message == "m.jsonl: the script wrote no metrics file there"


def test_what_the_gate_stopped_before_is_told_of_what_is_missing(
    harness: HarnessFolder,
) -> None:
    """With `max_steps: 1`, nothing that comes after the only step is ever printed."""
    stop = "The gate stopped the script in step 2, before anything that comes after that step."
    printed = train_of(pattern=r"loss (?P<loss>\S+)")
    harness.whole()
    for train in (printed, train_of(file="m.jsonl"), train_of(checkpoint="end.pt")):
        assert refusal(harness, train=train).hint.startswith(stop)
    harness.whole(stopped_by="script")
    assert refusal(harness, train=printed).hint.startswith("Try the pattern on a printed line")


def test_a_missing_checkpoint_is_an_error(harness: HarnessFolder) -> None:
    harness.whole()
    error = refusal(harness, train=train_of(checkpoint="out/c.pt"))
    assert error.message == "out/c.pt: the script wrote no checkpoint there"


def test_a_checkpoint_that_is_a_pipe_is_refused(harness: HarnessFolder) -> None:
    harness.whole()
    os.mkfifo(harness.path.parent / "c.pt")
    assert "c.pt: cannot be read" in refusal(harness, train=train_of(checkpoint="c.pt")).message


def test_a_checkpoint_may_be_a_folder_without_links(harness: HarnessFolder) -> None:
    harness.whole()
    folder = harness.path.parent / "saved"
    folder.mkdir()
    (folder / "a.json").write_text('{"epoch": 3}')
    (folder / "notes.txt").write_text("text")
    evidence = collect(harness, train=train_of(checkpoint="saved"))
    assert [tensor.name for tensor in evidence.checkpoint.tensors] == [
        "checkpoint/a/epoch", "checkpoint/notes", "state/model/0/weight",
    ]  # fmt: skip
    assert evidence.notes == (
        "saved: notes.txt: its format is unknown, so its bytes were compared as they are",
    )
    (folder / "secret").symlink_to("/etc/passwd")
    error = refusal(harness, train=train_of(checkpoint="saved"))
    assert error.message.startswith("saved/secret: cannot be read: ")
    assert "is a link, not a regular file" in error.message


def test_what_the_settings_exclude_from_a_checkpoint_does_not_count(harness: HarnessFolder) -> None:
    harness.whole()
    rules = (
        CheckpointExclusion(pattern="/log/**", reason="a log"),
        CheckpointExclusion(pattern="/nothing", reason="was renamed"),
    )
    train = train_of(checkpoint="c.json").model_copy(update={"checkpoint_exclude": rules})

    def collected(seconds: float) -> RunEvidence:
        saved = f'{{"epoch": 3, "log": {{"lag": {seconds}}}}}'
        (harness.path.parent / "c.json").write_text(saved)
        return collect(harness, train=train)

    first, second = collected(1.5), collected(2.5)
    assert first.checkpoint == second.checkpoint
    names = [tensor.name for tensor in first.checkpoint.tensors]
    assert names == ["checkpoint/epoch", "state/model/0/weight"]
    assert first.notes == ("c.json: 1 value left out by /log/**: a log",)
    assert [(unused.key, unused.value) for unused in first.unused_settings] == [
        ("train.checkpoint_exclude", "/nothing")
    ]


def test_output_is_kept_up_to_the_limit_of_the_settings(harness: HarnessFolder) -> None:
    harness.whole()
    train = train_of(pattern="loss (?P<loss>[0-9.]+)")
    wide = train.model_copy(update={"output_limit_bytes": 8192})
    narrow = train.model_copy(update={"output_limit_bytes": 4096})
    names = [
        series.name
        for series in collect(harness, output=b"loss 1\n", printed=5000, train=wide).metrics
    ]
    assert "stdout.loss" in names
    with pytest.raises(EvidenceError, match="printed 5,000 bytes, of which 4,096 were kept"):
        collect(harness, output=b"loss 1\n", printed=5000, train=narrow)


def test_metrics_are_not_read_from_cut_output(harness: HarnessFolder) -> None:
    harness.whole()
    with pytest.raises(EvidenceError, match="the script printed 2,000,000 bytes, of which"):
        collect(harness, output=b"loss 1\n", printed=2_000_000, train=train_of(pattern="(?P<a>1)"))


def test_two_optimizers_share_a_step(harness: HarnessFolder) -> None:
    harness.whole()
    second = {"optimizer": 1, "seconds": 0.5, "parameters": "sha256:ff"}
    harness.steps(step_line(1), step_line(1, **second), step_line(2), step_line(2, **second))
    evidence = collect(harness)
    assert [series.name for series in evidence.metrics] == ["loss", "loss.1"]
    assert [(timing.step, timing.seconds) for timing in evidence.timings] == [(2, 0.75)]
    assert len(evidence.steps) == 2
    assert evidence.steps[0].parameters.startswith("sha256:")


def test_the_order_of_two_optimizers_counts(harness: HarnessFolder) -> None:
    harness.whole(steps=1)
    lines = (step_line(1), step_line(1, optimizer=1))
    harness.steps(*lines)
    before = collect(harness).steps
    harness.steps(*reversed(lines))
    assert collect(harness).steps != before


def test_every_rank_is_part_of_the_evidence(harness: HarnessFolder) -> None:
    harness.whole()
    harness.of(rank=1, pid=12).whole(peak_memory_bytes=2000)
    evidence = collect(harness)
    assert [tensor.name for tensor in evidence.checkpoint.tensors] == [
        "state.rank1/model/0/weight", "state/model/0/weight",
    ]  # fmt: skip
    assert [process.rank for process in evidence.processes] == [0, 1]
    assert evidence.peak_memory_bytes == 2000
    harness.of(rank=1, pid=12).steps(step_line(1), step_line(2, parameters="sha256:00"))
    changed = collect(harness).steps
    assert [step == other for step, other in zip(evidence.steps, changed, strict=True)] == [
        True,
        False,
    ]


def test_ranks_in_other_places_are_told_one_after_the_other(harness: HarnessFolder) -> None:
    harness.whole(environment={"device": "NVIDIA A10", "world_size": "2"})
    harness.of(rank=1, pid=12).whole(environment={"device": "cpu", "world_size": "2"})
    parts = collect(harness).environment.parts
    assert parts == {"device": "NVIDIA A10 | cpu", "world_size": "2"}


def test_each_gpu_that_a_process_attests_is_kept(harness: HarnessFolder) -> None:
    harness.whole()
    seen = {"index": 1, "name": "A", "capability": "9.0", "multiprocessors": 132}
    harness.attest(devices=[{**seen, "memory_bytes": 80, "slice": "1g.10gb", "used": True}])
    (device,) = collect(harness).processes[0].devices
    assert (device.index, device.slice, device.used) == (1, "1g.10gb", True)


def test_ranks_must_take_the_same_steps(harness: HarnessFolder) -> None:
    harness.whole()
    other = harness.of(rank=1, pid=12)
    other.whole(steps=1)
    other.steps(step_line(1))
    assert refusal(harness).message == "rank 1 took 1 steps, rank 0 took 2"
