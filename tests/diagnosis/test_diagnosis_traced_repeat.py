"""Faults of one commit's own, planted in real trainings: operator, line, claim and sentence."""

from __future__ import annotations

import pytest
from traced_runs import TRAINING, TracedRuns, changed, line_of

from gate.diagnosis.traces import compare_traces
from gate.evidence.trace import Claim, Phase

pytestmark = pytest.mark.torch

OWN_FUNCTION = changed(
    "model = Model()",
    """class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        own = torch.Generator()
        own.seed()
        return gradient + torch.randn(gradient.shape, generator=own) * 1e-3

model = Model()""",
    changed("model(x).square()", "Noisy.apply(model(x)).square()"),
)
NUMPY_NOISE = changed(
    "    optimizer.zero_grad()",
    "    x = x + torch.from_numpy(np.random.default_rng().normal(size=8).astype('float32'))\n"
    "    optimizer.zero_grad()",
)
NUMBER = changed("square().mean()", "square().mean() * (1 + time.time_ns() % 1000 / 1e6)")
# what an allocator leaves in memory is chance: here it is sure to differ in each run
UNWRITTEN = changed(
    "    optimizer.zero_grad()",
    "    scratch = torch.empty(1000)\n"
    "    left = (__import__('ctypes').c_float * 1000).from_address(scratch.data_ptr())\n"
    "    left[:] = [float(time.time_ns() % 100003)] * 1000\n"
    "    scratch[:8] = 0\n"
    "    x = x + scratch[500:508]\n"
    "    optimizer.zero_grad()",
)
THREAD = changed(
    "    optimizer.zero_grad()",
    "    def disturb():\n"
    "        x.add_(time.time_ns() % 1000)\n"
    "    worker = threading.Thread(target=disturb)\n"
    "    worker.start(); worker.join()\n"
    "    optimizer.zero_grad()",
)
BELOW = changed(
    "    optimizer.zero_grad()",
    "    x.numpy()[0, 0] = time.time_ns() % 1000\n    optimizer.zero_grad()",
)
OTHER_PATH = changed(
    "    optimizer.zero_grad()",
    "    if os.environ['RUN_NUMBER'] == '2':\n        x = x.tanh()\n    optimizer.zero_grad()",
)


def test_noise_in_an_own_backward_is_named_with_its_line(traced: TracedRuns) -> None:
    found = traced.repeat(OWN_FUNCTION)
    assert (found.claim, found.operator) == (Claim.RANDOM_STATE, "aten::randn")
    assert (found.line, found.phase) == (line_of(OWN_FUNCTION, "torch.randn(g"), Phase.BACKWARD)
    assert found.sentence == (
        f"aten::randn at script.py:{found.line} in the backward pass draws different random "
        "numbers "
        "from a generator of the script's own, whose state differs"
    )
    assert found.forward_place == f"script.py:{line_of(OWN_FUNCTION, 'return x * 1')}"


def test_noise_of_numpy_comes_from_outside(traced: TracedRuns) -> None:
    found = traced.repeat(NUMPY_NOISE)
    assert (found.claim, found.operator) == (Claim.OUTSIDE_VALUE, "aten::lift_fresh")
    assert found.line == line_of(NUMPY_NOISE, "from_numpy")
    assert "it comes from outside torch (NumPy, a file, a Python number)" in found.sentence
    assert found.remedy.startswith(f"Look at where the value at script.py:{found.line} comes from:")
    assert found.absolute is not None


def test_a_number_of_pythons_comes_from_outside(traced: TracedRuns) -> None:
    found = traced.repeat(NUMBER)
    assert (found.claim, found.line) == (Claim.OUTSIDE_VALUE, line_of(NUMBER, "time_ns"))
    assert found.sentence.startswith(
        f"a number that goes into aten::mul at script.py:{found.line} differs: other="
    )


def test_memory_that_nobody_wrote_is_named_where_it_was_taken(traced: TracedRuns) -> None:
    found = traced.repeat(UNWRITTEN)
    assert (found.claim, found.operator) == (Claim.UNINITIALISED, "aten::empty")
    assert found.line == line_of(UNWRITTEN, "scratch = torch.empty")
    use = line_of(UNWRITTEN, "x + scratch")
    assert found.sentence == (
        f"memory from aten::empty at script.py:{found.line} is read before it is written, first "
        f"by aten::add at script.py:{use}"
    )


def test_what_another_thread_wrote_is_named_with_its_line(traced: TracedRuns) -> None:
    found = traced.repeat(THREAD)
    assert (found.claim, found.operator) == (Claim.OUTSIDE_VALUE, "aten::add_")
    assert found.line == line_of(THREAD, "x.add_")
    assert found.sentence.startswith(
        f"another thread wrote into a tensor: aten::add_ at script.py:{found.line}"
    )


def test_a_write_past_torch_is_below_the_dispatcher(traced: TracedRuns) -> None:
    found = traced.repeat(BELOW)
    assert found.claim is Claim.BELOW_DISPATCHER
    assert f"at script.py:{line_of(BELOW, 'x.numpy()')} left equal differs when" in found.sentence
    assert "by NumPy, a custom kernel, another thread or another process" in found.sentence


def test_another_path_in_the_second_run_is_named(traced: TracedRuns) -> None:
    one, other = (traced.trace(OTHER_PATH, RUN_NUMBER=number)[1] for number in "12")
    found = compare_traces(one, other, drift=False)
    assert (found.claim, found.operator) == (Claim.CODE_PATH, "aten::tanh")
    assert found.line == line_of(OTHER_PATH, "x.tanh()")


def test_two_equal_runs_say_that_nothing_was_found(traced: TracedRuns) -> None:
    found = traced.repeat(TRAINING)
    assert found.claim is Claim.NOT_FOUND
    assert found.sentence.startswith("two traced runs agree in all of their ")


def test_a_clock_that_is_only_logged_is_no_cause(traced: TracedRuns) -> None:
    logged = changed(
        "    optimizer.zero_grad()",
        "    clock = torch.tensor(time.time()) * 2\n    optimizer.zero_grad()",
        NUMPY_NOISE,
    )
    found = traced.repeat(logged)
    assert found.line == line_of(logged, "from_numpy")


def test_tracing_changes_no_result(traced: TracedRuns) -> None:
    plain = traced.trace(TRAINING, first=0)[0]
    seen, traces = traced.trace(TRAINING, lines=True)
    assert plain.steps == seen.steps
    assert plain.checkpoint.root == seen.checkpoint.root
    assert traces[0].ended == "done"
    assert not traces[0].unread


def test_a_row_of_a_large_data_set_is_read_and_the_data_set_is_not(traced: TracedRuns) -> None:
    rows = changed("model = Model()", "rows = torch.randn(300_000, 8)\nmodel = Model()")
    rows = changed("    x = torch.randn(4, 8)", "    x = rows[4] + torch.zeros(4, 8)", rows)
    (trace,) = traced.trace(rows)[1]
    select = next(call for call in trace.calls if call.operator == "aten::select")
    assert [value.digest for value in select.inputs] == [""]
    assert all(value.digest for value in select.outputs)
    own = "own = torch.Generator(); own.seed()\nrows = torch.randn(300_000, 8, generator=own)"
    noise = changed("rows = torch.randn(300_000, 8)", own, rows)
    found = traced.repeat(noise)
    assert (found.claim, found.line) == (Claim.RANDOM_STATE, line_of(noise, "rows = torch"))
