"""The fuzzer's targets on its seeds and on damaged ones: only a `GateError` comes out."""

from __future__ import annotations

from contextlib import suppress

from each_row import each_row
from fuzz_targets import TARGETS, seeds
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import GateError

SEEDS = [(target, seed) for target in TARGETS for seed in seeds(target)]


@each_row("target", TARGETS)
def test_every_seed_is_read(target: str) -> None:
    found = list(seeds(target))
    assert found
    for seed in found:
        TARGETS[target](seed)


@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=8),
)
def test_damaged_seeds_end_in_a_clear_error(
    seed: tuple[str, bytes], damage: list[tuple[int, int]]
) -> None:
    data = bytearray(seed[1])
    for place, value in damage:
        data[place % len(data)] = value
    with suppress(GateError):
        TARGETS[seed[0]](bytes(data))
