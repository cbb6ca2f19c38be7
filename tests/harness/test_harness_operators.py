"""Operators that torch's determinism flag refuses or does not reach, planted in small scripts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

# It silences and records warnings as scripts do; the line of each planted operator is marked.
PLANTED = """
import sys, warnings
import autotuner, flash_attn, torch
from torch import nn

torch.manual_seed(1)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
warnings.simplefilter("ignore")
place, ones = torch.tensor([0, 1]), torch.ones(2)
ties, plain = torch.tensor([1.0, 1.0, 0.5]), torch.tensor([3.0, 1.0, 2.0])
sys.modules["triton.runtime.autotuner"] = autotuner  # torch itself must not find a triton
autotuner.use()

@torch.library.custom_op("mine::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2

class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        gradient.clone().put_(place, ones)  # in backward
        return gradient

for step in range(1, 4):
    x = torch.full((4, 4), 0.5)
    with warnings.catch_warnings(record=True):
        for _ in range(2 if step == 2 else 1):
            x.put_(place, ones)  # once a step, twice in step 2
    warnings.resetwarnings()
    if step != 2:
        torch.nn.functional.max_unpool2d(x.view(1, 1, 4, 4), torch.arange(16).view(1, 1, 4, 4), 2)
    ties.topk(1)  # a tie at the border
    plain.topk(2)
    ties.sort(); ties.sort(stable=True); plain.sort(0, True)  # the first of three
    ties.kthvalue(3); plain.kthvalue(1)  # the first of two
    double(plain)  # an operator of one's own
    optimizer.zero_grad()
    Odd.apply(model(x)).square().mean().backward()
    optimizer.step()
"""
AUTOTUNER = """
class Autotuner:
    def __init__(self, base_fn, configs, cache):
        self.base_fn, self.configs, self.cache = base_fn, configs, cache
def timed(): ...
def fixed(): ...
kept = []
def use():
    kept.append(Autotuner(timed, [1, 2], {"key": 2}))
    kept.append(Autotuner(fixed, [1], {"key": 1}))
"""
WATCHED = (
    "module:flash_attn;module:xformers;operator:aten::topk;operator:aten::sort;"
    "operator:aten::kthvalue"
)
ALL_ALERTS = "put_;max_unpooling2d_forward_out"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Small packages under the names of the real ones."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "flash_attn").mkdir()
    (folder / "flash_attn" / "__init__.py").write_text("")
    (folder / "autotuner.py").write_text(AUTOTUNER)
    return str(folder)


@pytest.fixture(scope="module")
def before(harness: Harness, packages: str) -> Outcome:
    """A judged run that allows what is planted, before any operator audit was taken."""
    return harness.run(PLANTED, python_path=packages, REPRO_GATE_ALLOW=ALL_ALERTS)


@pytest.fixture(scope="module")
def operator_audit(before: Outcome, harness: Harness, packages: str) -> Outcome:
    del before
    variables = {"REPRO_GATE_MODE": "audit", "REPRO_GATE_WATCH": WATCHED}
    return harness.run(PLANTED, python_path=packages, **variables)


def line_of(marker: str, script: str = PLANTED) -> int:
    return next(at for at, line in enumerate(script.splitlines(), 1) if marker in line)


def uses(outcome: Outcome, operator: str) -> list[dict[str, Any]]:
    return [use for use in outcome.document("operators")["uses"] if use["operator"] == operator]


def calls(use: dict[str, Any]) -> dict[int, int]:
    """Step to calls."""
    return {step: many for first, last, many in use["spans"] for step in range(first, last + 1)}


def test_the_operator_audit_run_trains_to_its_end(operator_audit: Outcome) -> None:
    assert (operator_audit.code, operator_audit.stderr) == (0, "")
    assert operator_audit.document("summary")["problems"] == []
    applied = operator_audit.document("process")["applied"]
    assert applied["deterministic_algorithms"] == "warn"


def test_an_operator_is_counted_at_each_step_though_its_warnings_are_silenced(
    operator_audit: Outcome,
) -> None:
    forward, backward = uses(operator_audit, "put_")
    assert calls(forward) == {1: 1, 2: 2, 3: 1}
    assert (forward["file"], forward["line"]) == ("script.py", line_of("twice in step 2"))
    assert (forward["source"], forward["direction"]) == ("alert", "forward")
    assert (backward["direction"], calls(backward)) == ("backward", {1: 1, 2: 1, 3: 1})


def test_steps_without_a_call_are_left_out(operator_audit: Outcome) -> None:
    (unpool,) = uses(operator_audit, "max_unpooling2d_forward_out")
    assert calls(unpool) == {1: 1, 3: 1}
    assert unpool["line"] == line_of("max_unpool2d")


@pytest.mark.parametrize(
    ("operator", "marker"),
    [
        ("aten::topk", "a tie at the border"),
        ("aten::sort", "the first of three"),
        ("aten::kthvalue", "the first of two"),
    ],
)
def test_a_choice_among_equal_values_is_counted_and_no_other(
    operator_audit: Outcome, operator: str, marker: str
) -> None:
    (use,) = uses(operator_audit, operator)
    assert (use["source"], use["device"], use["line"]) == ("call", "cpu", line_of(marker))
    assert calls(use) == {1: 1, 2: 1, 3: 1}


def test_an_operator_of_ones_own_is_seen(operator_audit: Outcome) -> None:
    (use,) = uses(operator_audit, "mine::double")
    assert use["line"] == line_of("an operator of one's own")


def test_watched_packages_and_timed_autotuners_are_found(operator_audit: Outcome) -> None:
    document = operator_audit.document("operators")
    assert document["modules"] == ["flash_attn"]
    assert document["autotuners"] == [{"kernel": "timed", "configurations": 2}]
    assert (document["refused"], document["extensions"], document["dropped"]) == ([], [], 0)


def test_an_operator_audit_changes_no_judged_run(
    before: Outcome, operator_audit: Outcome, harness: Harness, packages: str
) -> None:
    after = harness.run(PLANTED, python_path=packages, REPRO_GATE_ALLOW=ALL_ALERTS)
    digests = [
        [line["parameters"] for line in outcome.lines("steps")]
        for outcome in (before, after, operator_audit)
    ]
    assert digests[0] == digests[1] == digests[2]
    assert before.state() == after.state()


def test_allowed_operators_run_and_are_counted(before: Outcome) -> None:
    assert (before.code, before.stderr) == (0, "")
    assert before.document("process")["problems"] == []
    assert before.document("summary")["problems"] == []
    assert calls(uses(before, "put_")[0]) == {1: 1, 2: 2, 3: 1}
    assert uses(before, "aten::topk") == []  # judged runs see torch's own notices only


def test_an_operator_that_is_not_on_the_list_is_refused_with_its_place(
    harness: Harness, packages: str
) -> None:
    ended = harness.run(PLANTED, python_path=packages, REPRO_GATE_ALLOW="put_")
    assert ended.code == 1
    line = line_of("max_unpool2d")
    refused = {"operator": "max_unpooling2d_forward_out", "file": "script.py", "line": line}
    assert ended.document("operators")["refused"] == [{**refused, "step": 1}]
    assert f"(repro-gate, at script.py:{line})" in ended.stderr
    assert "add it to determinism.allow_operators" in ended.stderr


# Each handles the error in another way that leaves nothing for the interpreter to report.
HANDLED = """
import logging, sys, torch
from torch import nn
def planted():
    torch.zeros(4).put_(torch.tensor([0]), torch.ones(1))  # planted
class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        planted()
        return gradient
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.ones(2)).sum()
    loss.backward()
    optimizer.step()
"""
WAYS = {
    "uncaught": "planted()",
    "exit": "try:\n    planted()\nexcept RuntimeError:\n    sys.exit(1)",
    "logged": "try:\n    planted()\nexcept RuntimeError:\n    logging.exception('no')",
    "wrapped": "try:\n    planted()\nexcept RuntimeError as error:\n    raise OSError from error",
    "thread": "import threading\none = threading.Thread(target=planted)\none.start(); one.join()",
    "backward": "try:\n    Odd.apply(model(torch.ones(2)).sum()).backward()\n"
    "except RuntimeError:\n    pass",
}
# Torch's own derivative of `put` is the one that is refused.
INSIDE_TORCH = """
torch.use_deterministic_algorithms(False)
output = model(torch.ones(2)).put(torch.tensor([0]), torch.ones(1)).sum()
torch.use_deterministic_algorithms(True)
try:
    output.backward()  # refused inside torch
except RuntimeError:
    pass
"""


@pytest.mark.parametrize("way", WAYS)
def test_what_strict_mode_refuses_is_noted_however_the_script_handles_it(
    harness: Harness, way: str
) -> None:
    ended = harness.run(HANDLED + WAYS[way])
    line = line_of("# planted", HANDLED)
    refused = {"operator": "put_", "file": "script.py", "line": line, "step": 3}
    assert ended.document("operators")["refused"] == [refused]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 tells nobody of an error")
@pytest.mark.parametrize("call", ["planted()", "Odd.apply(model(torch.ones(2)).sum()).backward()"])
def test_what_is_swallowed_without_a_word_is_noted(harness: Harness, call: str) -> None:
    ended = harness.run(f"{HANDLED}try:\n    {call}\nexcept RuntimeError:\n    pass")
    assert ended.code == 0
    (refused,) = ended.document("operators")["refused"]
    assert (refused["operator"], refused["line"]) == ("put_", line_of("# planted", HANDLED))


def test_a_backward_pass_without_a_line_of_the_scripts_is_told_by_its_caller(
    harness: Harness,
) -> None:
    ended = harness.run(HANDLED + INSIDE_TORCH)
    (refused,) = ended.document("operators")["refused"]
    assert refused["operator"] == "put_"
    assert refused["line"] == line_of("# refused inside torch", HANDLED + INSIDE_TORCH)


def test_a_strict_run_without_such_operators_writes_no_operator_audit(harness: Harness) -> None:
    assert harness.run(HANDLED).names() == ["ended", "process", "state", "steps", "summary"]


def test_a_script_that_replaces_the_list_of_filters_is_told(harness: Harness) -> None:
    replaced = HANDLED.replace("loss.backward()", "loss.backward(); warnings.filters = []")
    ended = harness.run("import warnings\n" + replaced, REPRO_GATE_ALLOW="put_")
    (problem,) = ended.document("summary")["problems"]
    assert problem.startswith("the script replaced Python's list of warning filters")


def test_a_package_that_links_torch_is_a_compiled_extension(tmp_path: Path) -> None:
    from gate.harness.operator_policy import _uses_torch  # noqa: PLC0415 - needs no torch, as its user

    for name, content, expected in (("a.so", b"..libc10.so", True), ("b.so", b"..libm.so", False)):
        (tmp_path / name).write_bytes(content)
        assert _uses_torch(str(tmp_path / name)) is expected
    assert not _uses_torch(str(tmp_path / "missing.so"))
