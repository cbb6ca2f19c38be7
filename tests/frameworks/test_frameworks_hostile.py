"""Scripts that do their worst: a clear error or a good record, and never a traceback of ours."""

from __future__ import annotations

import sys

import pytest
from real_training import Trained, Trainings

from gate.errors import EvidenceError, GateError, RunError
from gate.training.runs import RunMode

pytestmark = pytest.mark.torch

TRAINING = """
{before}
import torch
{after}
def train():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(1, 10):
        {inside}
        weight.square().sum().backward()
        optimizer.step()

{start}
"""

REPLACED_BEFORE = """
import sys, types
sys.modules["torch"] = types.ModuleType("torch")
print(sys.modules["torch"])
"""

REPLACED_AFTER = """
import sys, types
class Proxy(types.ModuleType):
    def __getattr__(self, name):
        return getattr(real, name)
real, sys.modules["torch"] = torch, Proxy("torch")
torch = sys.modules["torch"]
"""

SILENCED = """
import repro_gate_harness.recording.recorder
repro_gate_harness.recording.recorder.Recorder.observe = lambda self, *_, **__: None
"""

BROKEN = """
import repro_gate_harness.recording.recorder
def observe(self, *_, **__):
    raise RuntimeError("patched")
repro_gate_harness.recording.recorder.Recorder.observe = observe
"""

DIGEST_FAKED = """
import repro_gate_harness.tensor_digests
repro_gate_harness.tensor_digests.StartedDigest.finish = lambda *_: "sha256:" + "0" * 64
"""

# On a machine without CUDA torch's own answer to "was CUDA started before this fork" is played.
FORKING = """
import multiprocessing
torch.cuda._is_in_bad_fork = lambda: multiprocessing.parent_process() is not None
worker = multiprocessing.get_context("fork").Process(target=train)
worker.start()
worker.join()
"""


def script(
    *, before: str = "", after: str = "", inside: str = "pass", start: str = "train()"
) -> str:
    return TRAINING.format(before=before, after=after, inside=inside, start=start)


def refused(trainings: Trainings, text: str, **train: object) -> GateError:
    """The error of a run that must not pass, which shows nothing of the harness's inside."""
    with pytest.raises(GateError) as caught:
        trainings.run(text, **train)  # type: ignore[arg-type] # settings by name
    assert "Traceback" not in caught.value.message
    assert "repro_gate_harness/" not in str(caught.value)
    return caught.value


def good(trained: Trained) -> bool:
    return len(trained.evidence.steps) == 3 and "repro_gate_harness/" not in trained.text


def test_a_torch_that_was_put_in_place_is_no_training(trainings: Trainings) -> None:
    error = refused(trainings, REPLACED_BEFORE)
    assert error.message == "the script never imported torch"


def test_a_torch_that_is_wrapped_later_is_still_observed(trainings: Trainings) -> None:
    assert good(trainings.run(script(after=REPLACED_AFTER)))


@pytest.mark.parametrize(
    ("patch", "part"),
    [(SILENCED, "recorder.Recorder.observe"), (BROKEN, "recorder.Recorder.observe")],
    ids=["silenced", "broken"],
)
def test_a_replaced_recorder_is_named(trainings: Trainings, patch: str, part: str) -> None:
    error = refused(trainings, script(after=patch))
    assert any(f"the script replaced the harness's {part}" in line for line in error.details)


def test_a_replaced_digest_is_named(trainings: Trainings) -> None:
    error = refused(trainings, script(after=DIGEST_FAKED))
    assert any("harness's tensor_digests.StartedDigest.finish" in line for line in error.details)


def test_a_replaced_recorder_does_not_break_the_training(trainings: Trainings) -> None:
    with pytest.raises(EvidenceError, match="exited with 0 before any optimizer step"):
        trainings.run(script(after=BROKEN), mode=RunMode.DEFAULT)


def test_a_fork_after_cuda_was_started_is_refused(trainings: Trainings) -> None:
    error = refused(trainings, script(start=FORKING))
    assert any(
        "this process was forked after CUDA had been initialised" in line for line in error.details
    )


@pytest.mark.parametrize("first", [0, 3])
def test_closed_descriptors_change_nothing(trainings: Trainings, first: int) -> None:
    closing = f"if step == 2: __import__('os').closerange({first}, 4096)"
    assert good(trainings.run(script(inside=closing)))


def test_an_early_exit_without_handlers_is_told(trainings: Trainings) -> None:
    error = refused(trainings, script(inside="if step == 2: __import__('os')._exit(0)"))
    assert "is missing: the training process did not exit cleanly" in error.message
    assert "os._exit" in error.hint


def test_binary_output_is_harmless(trainings: Trainings) -> None:
    noise = "__import__('sys').stdout.buffer.write(bytes(range(256)) * 50)"
    trained = trainings.run(script(inside=noise))
    assert good(trained)
    assert trained.result.output_bytes == 3 * 50 * 256


def test_binary_output_of_a_failure_is_shown_as_text(trainings: Trainings) -> None:
    noise = "__import__('sys').stdout.buffer.write(b'\\x1b[31m\\x00\\xff\\n'); raise SystemExit(4)"
    error = refused(trainings, script(inside=noise))
    assert "exited with 4" in error.message
    assert all(line.isprintable() for line in error.details)


def test_a_kill_is_told_with_its_likely_cause(trainings: Trainings) -> None:
    error = refused(
        trainings,
        script(inside="if step == 2: __import__('os').kill(__import__('os').getpid(), 9)"),
    )
    assert isinstance(error, RunError)
    assert "was killed by SIGKILL" in error.message
    assert "for lack of memory" in error.hint


def test_a_script_that_asks_gets_no_answer_and_a_hint(trainings: Trainings) -> None:
    error = refused(trainings, script(before="input('Continue? ')"))
    assert error.hint == (
        "The training waits for input on stdin and gets none: pass the answers as arguments."
    )


def test_a_cleared_environment_is_explained(trainings: Trainings) -> None:
    inner = f"[{sys.executable!r}, 'inner.py']"
    with pytest.raises(
        EvidenceError, match="no process of the training loaded the harness"
    ) as error:
        trainings.run(
            f"import subprocess; subprocess.run({inner}, env={{}}, check=True)",
            others={"inner.py": script()},
        )
    told = "which was given an environment that lacks the gate's variables"
    assert (error.value.hint or "").startswith("train.py:1 started `python")
    assert told in (error.value.hint or "")


def test_a_helper_without_the_harness_fails_nothing_and_is_told(trainings: Trainings) -> None:
    helper = f"import subprocess; subprocess.run([{sys.executable!r}, '-Ic', 'print(1)'])"
    trained = trainings.run(script(before=helper))
    assert good(trained)
    (child,) = trained.evidence.children
    assert child.place == "train.py:2"
    assert child.command.endswith(" -I -c ...")
