"""Values and settings that no operator is to blame for, in real trainings."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_cases import call, trace, value
from traced_runs import TRAINING, TracedRuns, changed, line_of

from gate.diagnosis.other_processes import other_processes
from gate.diagnosis.touched_lines import with_changed_lines
from gate.diagnosis.traces import compare_traces
from gate.evidence.trace import Claim, Phase, RankTrace
from gate.harness.tracing.places import OURS, WRAPPERS
from gate.system.git.changes import ChangedLines

pytestmark = pytest.mark.torch

WORKERS = changed(
    "model = Model()",
    """class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.from_numpy(np.random.default_rng().normal(size=8).astype('float32'))

model = Model()
batches = iter(torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1))""",
    changed("    x = torch.randn(4, 8)", "    x = next(batches)"),
)
COPIED = changed(
    "for step in range(3):",
    "import copy\nbehind = copy.deepcopy(model)\nfor step in range(3):",
)
FLIPPED = changed(
    "for step in range(3):",
    "torch.backends.mkldnn.enabled = os.environ['RUN_NUMBER'] == '2'\nfor step in range(3):",
    changed("x = torch.randn(4, 8)", "x = torch.randn(64, 8) * 1.1"),
)
CHANNELS = changed(
    "for step in range(3):",
    "norm = nn.BatchNorm2d(8)\nfor step in range(3):",
    changed(
        "    x = torch.randn(4, 8)",
        "    image = torch.randn(4, 8, 9, 9)\n    x = norm(image).mean((2, 3))",
    ),
)


def test_what_a_data_worker_made_is_no_fault_of_an_operator(traced: TracedRuns) -> None:
    found = traced.repeat(WORKERS)
    assert not found.given
    assert found.claim is Claim.OUTSIDE_VALUE
    assert found.sentence.startswith(
        "a value made outside the traced calls differs, by a worker of a DataLoader (taken at "
        f"script.py:{line_of(WORKERS, 'x = next')}"
    )


def test_other_data_of_a_worker_is_no_other_code_path_whenever_it_arrives(
    traced: TracedRuns,
) -> None:
    seeded = changed("default_rng()", "default_rng(index)", WORKERS)
    sent = changed("num_workers=1", "num_workers=2", seeded)
    for head in (
        changed("size=8).astype('float32')", "size=8).astype('float32') * 2", sent),
        # a slower worker sends its first batch behind those of the other one
        changed(
            "        return torch.from",
            "        time.sleep((index < 4) / 5)\n        index += 100\n        return torch.from",
            sent,
        ),
    ):
        found = traced.drift(sent, head)
        assert (found.claim, found.elsewhere) == (Claim.OUTSIDE_VALUE, True), found.sentence
        assert found.line == line_of(head, "x = next")
        assert "Look at changes to the data" in found.remedy


NUMBER = changed(
    "np.random.default_rng().normal(size=8).astype('float32'))\n",
    "np.ones(8, 'float32')), 0.5\n",
    changed(
        "num_workers=1",
        "num_workers=1,\n"
        "    collate_fn=lambda rows: (torch.stack([one[0] for one in rows]), rows[0][1])",
        changed(
            "x = next(batches)",
            "x, weight = next(batches)",
            changed("square().mean()", "square().mean() * weight", WORKERS),
        ),
    ),
)


def test_a_number_that_a_worker_sends_is_no_change_of_the_line_that_uses_it(
    traced: TracedRuns,
) -> None:
    head = changed(", 0.5\n", ", 0.7\n", NUMBER)
    _, base = traced.trace(NUMBER, last=1)
    run, traces = traced.trace(head, last=1, lines=True)
    finding = compare_traces(base, traces, drift=True)
    assert finding.sentence.endswith("is called with other=0.7 instead of other=0.5")
    assert finding.given
    others = other_processes((run,))
    sent = ChangedLines(file="script.py", first=line_of(head, ", 0.7"), last=line_of(head, ", 0.7"))
    told = with_changed_lines(finding, (sent,), traces[0], ".", others=others)
    assert (told.elsewhere, told.changed, told.changed_later) == (True, (), (sent,))


def test_a_copy_of_the_model_before_a_change_hides_nothing(traced: TracedRuns) -> None:
    found = traced.drift(COPIED, changed("square().mean()", "square().mean() * 0.5", COPIED))
    assert found.claim is Claim.CODE_PATH
    assert found.operator == "aten::mul"
    assert found.line == line_of(COPIED, "square().mean()")


def test_a_switch_that_differs_is_named_and_no_operator_is_blamed(traced: TracedRuns) -> None:
    one, other = (traced.trace(FLIPPED, RUN_NUMBER=number)[1] for number in "12")
    found = compare_traces(one, other, drift=False)
    assert found.claim in {Claim.SETTING, Claim.NOT_FOUND}  # the kernels may agree on this CPU
    assert "the operator is nondeterministic" not in found.sentence


def test_values_in_another_order_in_memory_are_said_to_be_that(traced: TracedRuns) -> None:
    head = changed("norm(image)", "norm(image.to(memory_format=torch.channels_last))", CHANNELS)
    found = traced.drift(CHANNELS, head)
    assert found.operator == "aten::_to_copy" or "layout" in found.sentence
    assert found.line == line_of(CHANNELS, "norm(image)")


def test_the_settings_of_each_call_are_recorded(traced: TracedRuns) -> None:
    _, (trace,) = traced.trace(
        changed("    optimizer.zero_grad()", "    torch.set_num_threads(1 + step)")
    )
    threads = {one.settings["threads"] for one in trace.settings}
    assert threads == {"1", "2"}
    assert compare_traces((trace,), (trace,), drift=False).claim is Claim.NOT_FOUND


def test_each_file_that_hands_on_a_call_of_the_script_is_there() -> None:
    """By its name it is told from the harness's own work, which no trace shows."""
    assert {path.stem for path in Path(OURS).rglob("*.py")} >= set(WRAPPERS)


LOOP = TRAINING[TRAINING.index("for step in range(3):") :]
IN_A_THREAD = (
    TRAINING.removesuffix(LOOP)
    + "def train():\n"
    + "".join(f"    {line}\n" for line in LOOP.splitlines())
    + "trains = threading.Thread(target=train)\ntrains.start()\ntrains.join()\n"
)


def test_a_training_in_a_thread_of_its_own_is_followed_there(traced: TracedRuns) -> None:
    head = changed("square().mean()", "square().mean() * 0.5", IN_A_THREAD)
    (_, base), (_, (trace,)) = (traced.trace(text, lines=True) for text in (IN_A_THREAD, head))
    found = compare_traces(base, (trace,), drift=True)
    line = line_of(IN_A_THREAD, "square().mean()")
    assert (found.claim, found.operator, found.line) == (Claim.CODE_PATH, "aten::mul", line)
    assert line in [one.line for one in trace.lines]
    again = compare_traces(base, traced.trace(IN_A_THREAD)[1], drift=True)
    assert again.claim is Claim.NOT_FOUND
    assert again.sentence.startswith("the traces of base and head agree in all of their ")


def test_what_another_thread_does_beside_the_training_is_not_called_equal() -> None:
    def run(beside: str) -> tuple[RankTrace]:
        return (
            trace(
                call(0, "aten::mul", (), (value("a"),)),
                call(1, "aten::add_", (value("a", 0),), (value("b"),), phase=Phase.OPTIMIZER),
                call(2, "aten::sum", (), (value(beside),), thread=1),
            ),
        )

    found = compare_traces(run("x"), run("y"), drift=True)
    assert found.sentence == (
        "the traces of base and head agree in all of their 2 operator calls of the thread that "
        "trains"
    )
