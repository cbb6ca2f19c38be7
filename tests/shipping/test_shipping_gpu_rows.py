"""What the parts of the first half hour say of trainings on a GPU that are played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from evidence_cases import LOSSES, PARTS, evidence_of
from gpu_check.bench import GPU_SIZES, Bench, Sections
from gpu_check.gating import observing
from gpu_check.repeating import BENCHMARKED, compiled, graphs, repeats, stability
from gpu_check.rows import Answer, Row

from gate.errors import GateError, RunError
from gate.evidence.observations import Override, OverrideKind
from gate.evidence.run_evidence import RunEvidence
from gate.training.runs import RunMode

GPU = {**PARTS, "device": "GPU, compute capability 9.0, 132 multiprocessors"}
REFUSAL = "RuntimeError: cumsum_cuda_kernel does not have a deterministic implementation, but you"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a part asked a run to be."""

    arguments: tuple[str, ...]
    label: str
    observe: bool


Play = Callable[[Asked], RunEvidence]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedBench(Bench):
    """A GPU whose trainings are played."""

    play: Play

    def train(
        self,
        *arguments: str,
        label: str = "strict-1",
        mode: RunMode = RunMode.STRICT,
        observe: bool = True,
        sections: Sections | None = None,
    ) -> RunEvidence:
        """The played run."""
        assert mode is RunMode.STRICT
        assert not sections or set(sections) <= {"record", "determinism"}
        return self.play(Asked(arguments=arguments, label=label, observe=observe))


def rows(part: Callable[[Bench], Iterator[Row]], play: Play) -> dict[str, Row]:
    bench = PlayedBench(gpu=True, sizes=GPU_SIZES, folder=Path(), play=play)
    return {row.what: row for row in part(bench)}


def equal(asked: Asked) -> RunEvidence:
    return evidence_of(asked.label, parts=GPU)


def turned_on(label: str, values: tuple[float, ...], line: int) -> RunEvidence:
    override = Override(
        rank=0, pid=7, step=1, kind=OverrideKind.SWITCH, name="cudnn_benchmark", before="off",
        after="on", file="train.py", line=line, closed=False, restored=False,
    )  # fmt: skip
    run = evidence_of(label, values=values, parts=GPU)
    return run.model_copy(update={"overrides": (override,)})


def test_equal_pairs_hold_and_no_false_alarm_is_counted() -> None:
    found = rows(stability, equal)
    last = found.pop(BENCHMARKED)
    assert {row.answer for row in found.values()} == {Answer.HELD}
    assert len(found) == 14
    # it turns cuDNN's search on, which has to be seen
    assert last.answer is Answer.FAILED
    assert rows(repeats, equal)["false alarms"].told == "0 of 50 strict repeats"


def test_a_pair_that_differs_fails_and_counts_as_an_alarm() -> None:
    def differing(asked: Asked) -> RunEvidence:
        values = (2.5, 2.25, 9.0) if asked.label in {"strict-2", "strict-7"} else LOSSES
        return evidence_of(asked.label, values=values, parts=GPU)

    assert rows(stability, differing)["lstm"].answer is Answer.FAILED
    assert "differs: loss at step 3" in rows(stability, differing)["lstm"].told
    assert rows(repeats, differing)["false alarms"] == Row(
        what="false alarms", answer=Answer.FAILED, told="2 of 50 strict repeats"
    )


def test_an_operator_that_torch_refuses_is_told_and_another_fault_fails() -> None:
    def refusing(asked: Asked) -> RunEvidence:
        line = REFUSAL if asked.arguments[1] == "cumsum" else "CUDA error: 700"
        raise RunError(f"run {asked.label}: exited with 1", details=(line,))

    by_name = rows(stability, refusing)
    assert by_name["cumsum"].answer is Answer.TOLD
    assert by_name["cumsum"].told == "torch refuses cumsum_cuda_kernel"
    for name in ("lstm", BENCHMARKED):
        assert by_name[name].answer is Answer.FAILED
        assert by_name[name].told == "run strict-1: exited with 1; CUDA error: 700"


@pytest.mark.parametrize("first", [LOSSES, (9.0, 9.0, 9.0)])
def test_a_script_that_lets_cudnn_search_may_differ_when_its_line_is_the_first_suspect(
    first: tuple[float, ...],
) -> None:
    def searching(asked: Asked) -> RunEvidence:
        if asked.arguments[1:] != (BENCHMARKED,):
            return evidence_of(asked.label, parts=GPU)
        return turned_on(asked.label, first if asked.label == "strict-1" else LOSSES, 72)

    row = rows(stability, searching)[BENCHMARKED]
    assert row.answer is Answer.HELD
    assert "train.py:72" in row.told


def test_a_run_that_trained_on_the_cpu_shows_nothing_about_gpus() -> None:
    def on_cpu(asked: Asked) -> RunEvidence:
        return evidence_of(asked.label)

    bench = PlayedBench(gpu=True, sizes=GPU_SIZES, folder=Path(), play=on_cpu)
    first = next(stability(bench))
    assert (first.answer, first.told) == (Answer.FAILED, "strict-1 trained on the CPU")
    for part in (observing, repeats):
        with pytest.raises(GateError, match="trained on the CPU"):
            list(part(bench))


@pytest.mark.parametrize(
    ("observed", "answer"), [(0.100, Answer.HELD), (0.0985, Answer.HELD), (0.05, Answer.FAILED)]
)
def test_observed_and_unobserved_steps_have_to_agree(observed: float, answer: Answer) -> None:
    def timed(asked: Asked) -> RunEvidence:
        seconds = observed if asked.observe else 0.1
        return evidence_of(asked.label, parts=GPU, step_seconds=(1.0,) * 5 + (seconds,) * 7)

    assert rows(observing, timed)["they agree"].answer is answer


@pytest.mark.parametrize(("steps", "answer"), [(8, Answer.HELD), (3, Answer.FAILED)])
def test_each_replay_of_a_graph_has_to_be_a_step(
    steps: int, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded(asked: Asked) -> RunEvidence:
        return evidence_of(asked.label, parts=GPU, values=(1.0,) * steps)

    # there is no CUDA for the script itself
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert rows(graphs, recorded)["under the harness"].answer is answer


def test_a_script_that_breaks_under_the_harness_alone_fails_the_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: Asked) -> RunEvidence:
        raise RunError("run strict-1: exited with 1: torch.AcceleratorError: CUDA error: 900")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(RunError):
        rows(graphs, broken)


def test_each_mode_of_the_compiler_is_told_and_one_that_breaks_ends_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaking(asked: Asked) -> RunEvidence:
        if "--compile=max-autotune" in asked.arguments:
            raise RunError(f"run {asked.label}: exited with 1")
        return evidence_of(asked.label, parts=GPU)

    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    answers = {name: row.answer for name, row in rows(compiled, breaking).items()}
    assert answers == {
        "default": Answer.HELD,
        "max-autotune": Answer.FAILED,
        "reduce-overhead": Answer.HELD,
    }
