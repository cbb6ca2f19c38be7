"""Changes of code between two commits, in real trainings: operator, line, claim and sentence."""

from __future__ import annotations

import pytest
from traced_runs import TRAINING, TracedRuns, changed, line_of

from gate.diagnosis.touched_lines import with_changed_lines
from gate.diagnosis.traces import compare_traces, first_not_finite_call
from gate.evidence.trace import Claim, Phase
from gate.system.git.changes import ChangedLines

pytestmark = pytest.mark.torch


def test_another_activation_is_named(traced: TracedRuns) -> None:
    found = traced.drift(TRAINING, changed("F.relu(self", "F.gelu(self"))
    line = line_of(TRAINING, "F.relu")
    assert (found.claim, found.line, found.module) == (Claim.CODE_PATH, line, "Model")
    assert found.sentence == (
        f"aten::gelu at script.py:{line} in module Model is called instead of aten::relu: the "
        "code path changed"
    )
    assert found.phase is Phase.FORWARD


def test_another_dropout_is_named_with_both_numbers(traced: TracedRuns) -> None:
    found = traced.drift(TRAINING, changed("nn.Dropout(0.1)", "nn.Dropout(0.2)"))
    assert (found.claim, found.module) == (Claim.CODE_PATH, "drop")
    assert found.line == line_of(TRAINING, "self.drop(h)")
    assert found.arguments == "p=0.8 instead of p=0.9"
    assert found.sentence.endswith("in module drop is called with p=0.8 instead of p=0.9")


def test_a_line_that_calls_a_module_of_torchs_says_nothing_of_how_that_was_set(
    traced: TracedRuns,
) -> None:
    assert traced.drift(TRAINING, changed("nn.Dropout(0.1)", "nn.Dropout(0.2)")).only_uses
    assert not traced.drift(TRAINING, changed("F.relu(self", "F.gelu(self")).only_uses


def test_a_value_is_followed_through_rows_of_one_memory(traced: TracedRuns) -> None:
    rows = """    rows = torch.stack([torch.randn(4, 8) * 0.5, torch.ones(4, 8)])
    x, ones = rows[0], rows[1]
"""
    base = changed("    x = torch.randn(4, 8)\n", rows)
    head = changed("* 0.5", "* 0.6", base)
    found = traced.drift(base, head)
    assert (found.claim, found.operator) == (Claim.CODE_PATH, "aten::mul")
    assert found.line == line_of(head, "* 0.6")


def test_another_row_of_one_memory_is_another_tensor(traced: TracedRuns) -> None:
    rows = """    rows = torch.randn(2, 4, 8).unbind()
    x = rows[0].roll(1, 0)
"""
    base = changed("    x = torch.randn(4, 8)\n", rows)
    head = changed("rows[0]", "rows[1]", base)
    found = traced.drift(base, head)
    assert (found.claim, found.operator) == (Claim.OTHER_TENSORS, "aten::roll")
    assert found.line == line_of(head, "rows[1]")


def test_a_write_into_another_part_of_a_parameter_is_named_where_the_part_is_chosen(
    traced: TracedRuns,
) -> None:
    begin = "for step"
    base = changed(begin, f"model.fc.bias.data[0:2].zero_()\n{begin}")
    head = changed("data[0:2]", "data[1:3]", base)
    found = traced.drift(base, head)
    assert (found.claim, found.operator) == (Claim.CODE_PATH, "aten::slice")
    assert found.line == line_of(head, "data[1:3]")


def test_another_learning_rate_is_named_in_the_optimizer(traced: TracedRuns) -> None:
    found = traced.drift(TRAINING, changed("lr=0.1", "lr=0.05"))
    assert (found.claim, found.phase) == (Claim.CODE_PATH, Phase.OPTIMIZER)
    assert found.line == line_of(TRAINING, "optimizer.step()")
    assert "alpha=-0.05 instead of alpha=-0.1" in found.sentence


def test_an_extra_draw_is_named_where_it_is_made(traced: TracedRuns) -> None:
    head = changed("    optimizer.zero_grad()", "    torch.rand(1)\n    optimizer.zero_grad()")
    found = traced.drift(TRAINING, head)
    assert (found.claim, found.operator) == (Claim.CODE_PATH, "aten::rand")
    assert found.sentence == (
        f"aten::rand at script.py:{line_of(head, 'torch.rand(1)')} is called in the head commit "
        "only and draws random numbers"
    )


def test_a_wider_layer_is_named_by_its_shape(traced: TracedRuns) -> None:
    found = traced.drift(TRAINING, changed("torch.randn(4, 8)", "torch.randn(6, 8)"))
    assert (found.claim, found.operator) == (Claim.CODE_PATH, "aten::randn")
    assert "instead of" in found.sentence


def test_a_printed_number_moves_nothing(traced: TracedRuns) -> None:
    head = changed("    loss.backward()", "    print(loss.item(), x.sum())\n    loss.backward()")
    found = traced.drift(TRAINING, head)
    assert found.claim is Claim.NOT_FOUND
    assert found.sentence.startswith("the traces of base and head agree")


def test_another_seed_is_the_state_of_the_generator(traced: TracedRuns) -> None:
    found = traced.drift(
        changed("model = Model()", "torch.manual_seed(1)\nmodel = Model()"),
        changed("model = Model()", "torch.manual_seed(2)\nmodel = Model()"),
    )
    assert (found.claim, found.operator) == (Claim.RANDOM_STATE, "aten::uniform_")
    assert "draws different random numbers from the global generator" in found.sentence


def test_the_lines_of_the_diff_that_ran_come_nearest_first(traced: TracedRuns) -> None:
    head = changed("lr=0.1", "lr=0.05") + "\ndef never():\n    return 1\n"
    trace = traced.trace(head, lines=True)[1]
    found = compare_traces(traced.trace(TRAINING)[1], trace, drift=True)
    line, unused = line_of(head, "lr=0.05"), line_of(head, "return 1")
    early = line_of(head, "import os")
    hunks = tuple(
        ChangedLines(file=f"training/{name}", first=number, last=number)
        for name, number in (
            ("script.py", early),
            ("script.py", line),
            ("script.py", unused),
            ("notes.md", 1),
        )
    )
    told = with_changed_lines(found, hunks, trace[0], "training")
    assert [hunk.place for hunk in told.changed] == [f"script.py:{line}", f"script.py:{early}"]
    assert [hunk.place for hunk in told.changed_later] == [f"script.py:{unused}"]


def test_the_call_that_gives_the_first_nan_is_named(traced: TracedRuns) -> None:
    head = changed("return self.out(h)", "h = self.out(h) * 0\n        return h.log() - h.log()")
    _, traces = traced.trace(head, lines=True)
    found = first_not_finite_call(traces, infinite=False)
    line = line_of(head, "h.log()")
    assert found.sentence == (
        f"aten::sub at script.py:{line} gives the first NaN, of an input that contains an infinity"
    )
    assert first_not_finite_call(traces, infinite=True).sentence == (
        f"aten::log at script.py:{line} gives the first infinity"
    )
    # what the script's end changes ran after it
    hunks = tuple(
        ChangedLines(file="script.py", first=one, last=one)
        for one in (line, line_of(head, "step()"))
    )
    (trace,) = traces
    assert with_changed_lines(found, hunks, trace, ".").changed == hunks[:1]


DEEP = changed(
    "model = Model()",
    """from torch.utils.checkpoint import checkpoint
body = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(8, 8), nn.Tanh())])
model = nn.ModuleList([body, nn.Linear(8, 2)])
OFTEN = 0.01""",
    changed(
        "    loss = model(x).square().mean()",
        "    h = checkpoint(body, x, use_reentrant=False)\n    loss = model[1](h).square().mean()",
        changed(
            "    loss.backward()",
            "    loss.backward()\n    nn.utils.clip_grad_norm_(model.parameters(), OFTEN)",
        ),
    ),
)
AT_ONCE = changed("checkpoint(body, x, use_reentrant=False)", "body(x)", DEEP)


def test_activations_that_are_no_longer_computed_again_hide_no_other_change(
    traced: TracedRuns,
) -> None:
    for base, head in ((DEEP, AT_ONCE), (AT_ONCE, DEEP)):
        clipped = changed("OFTEN = 0.01", "OFTEN = 0.005", head)
        one, other = (traced.trace(script)[1] for script in (base, clipped))
        found = compare_traces(one, other, drift=True, same_gradients=True)
        assert (found.claim, found.operator) == (Claim.CODE_PATH, "aten::mul")
        assert found.line == line_of(head, "clip_grad_norm_")
        assert found.arguments == "other=0.005 instead of other=0.01"
    # by itself it changes nothing
    one, other = (traced.trace(script)[1] for script in (DEEP, AT_ONCE))
    assert compare_traces(one, other, drift=True, same_gradients=True).claim is Claim.NOT_FOUND


def test_what_comes_behind_equal_gradients_is_not_what_led_to_them(traced: TracedRuns) -> None:
    clip = "    nn.utils.clip_grad_norm_(model.parameters(), OFTEN)\n"
    one, other = (traced.trace(one)[1] for one in (changed(clip, "", DEEP), AT_ONCE))
    found = compare_traces(one, other, drift=True, same_gradients=True)
    assert (found.claim, found.operator) == (Claim.CODE_PATH, "aten::_foreach_norm")
    assert found.line == line_of(AT_ONCE, "clip_grad_norm_")
