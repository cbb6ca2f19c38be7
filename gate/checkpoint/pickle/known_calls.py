"""Every call that stands for more than an object: tensors of all kinds, containers, NumPy."""

from __future__ import annotations

from typing import Final

from gate.checkpoint.pickle import calls as pickle_calls
from gate.checkpoint.pickle.nodes import GlobalNode
from gate.checkpoint.pickle.numpy_nodes import NUMPY_CALLS
from gate.checkpoint.pickle.special_tensors import SPECIAL_CALLS

_CALLS: Final = {**pickle_calls.CALLS, **NUMPY_CALLS, **SPECIAL_CALLS}


def known_call(function: object, arguments: object) -> object:
    """The value that a call stands for, or an opaque node; `StateError` as in `pickle_calls`."""
    if isinstance(function, GlobalNode) and isinstance(arguments, tuple):
        known = _CALLS.get(function.key)
        result = known(arguments) if known else None
        if result is not None:
            return result
    return pickle_calls.call(function, arguments)
