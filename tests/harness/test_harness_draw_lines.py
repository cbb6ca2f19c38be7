"""The line that draws is named where the code leaves no choice."""

from __future__ import annotations

import pytest

from gate.harness.sources.draw_lines import draws_in

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("line", "generator"),
    [
        ("np.random.rand(3)", "numpy"),
        ("numpy.random.shuffle(rows)", "numpy"),
        ("random.gauss(0, 1)", "python"),
        ("torch.randperm(8)", "torch"),
        ("F.dropout(rows)", "torch"),
        ("torch.nn.Dropout(0.5)", "torch"),
        ("DataLoader(rows, shuffle=shuffled)", "torch"),
    ],
)
def test_a_draw_in_a_loop_is_known(line: str, generator: str) -> None:
    assert draws_in(f"for step in steps:\n    {line}\n".encode()) == ((generator, 2),)


@pytest.mark.parametrize(
    "line",
    [
        "np.random.seed(3)",
        "np.random.default_rng().random()",
        "torch.randperm(8, generator=own)",
        "DataLoader(rows, shuffle=False)",
        "rng.random()",
        "torch.manual_seed(0)",
    ],
)
def test_what_draws_from_no_common_generator_is_not_one(line: str) -> None:
    assert draws_in(f"while True:\n    {line}\n".encode()) == ()


def test_data_that_is_made_once_is_passed_over_and_a_layer_is_not() -> None:
    once = b"rows = torch.randn(8, 3)\ndef make():\n    return np.random.rand(3)\n"
    assert draws_in(once) == ()
    assert draws_in(b"layer = nn.Dropout2d(0.1)\n") == (("torch", 1),)
    assert draws_in(b"def forward(self, x):\n    return x + torch.randn_like(x)\n") == (
        ("torch", 2),
    )
    assert draws_in(b"no python (") == ()
