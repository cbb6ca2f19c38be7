"""Digests of the random states, one for each generator that the training could draw from.

Only modules that have been imported are asked: a generator that nobody has seen was not drawn from.
No state is on a device: CUDA's is a seed and an offset, kept on the host.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from .. import harness_cuda
from ..output import Problems
from ..plain_bytes import use_bytes
from ..values import nested_digest


def random_states(problems: Problems) -> dict[str, str]:
    """`random.<generator>` to `algorithm:hex`."""
    found = {}
    for name, (in_use, read) in GENERATORS.items():
        if in_use():
            with problems.noting(f"reading the random state of {name}"):
                found[f"random.{name}"] = read()
    return found


def _python() -> str:
    """Python's own hash of the state's 625 integers, which no hash seed changes.

    It is sensitive to positions (xxHash rounds since 3.8) and twenty times as fast as writing the
    integers out.
    """
    state: Any = sys.modules["random"].getstate()
    version, integers, deviate = state
    # None has a hash of its own in each process, before Python 3.12.
    kept = () if deviate is None else (deviate,)
    return f"tuple64:{hash((version, *integers, *kept)) % 2**64:016x}"


def _numpy() -> str:
    return nested_digest(sys.modules["numpy.random"].get_state(legacy=False), lambda _: None)


def _torch() -> str:
    return _of_states([torch.get_rng_state()])


def _cuda() -> str:
    return _of_states([generator.get_state() for generator in harness_cuda.generators()])


def _of_states(states: list[torch.Tensor]) -> str:
    hasher = hashlib.sha256()
    for state in states:
        use_bytes(state, hasher.update)
    return f"sha256:{hasher.hexdigest()}"


# Whether a generator could have been drawn from, and its state.
GENERATORS: Final[dict[str, tuple[Callable[[], bool], Callable[[], str]]]] = {
    "python": (lambda: "random" in sys.modules, _python),
    "numpy": (lambda: "numpy.random" in sys.modules, _numpy),
    "torch": (lambda: True, _torch),
    "cuda": (harness_cuda.in_use, _cuda),
}
