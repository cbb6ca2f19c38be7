"""Replaces a method of a class written in C, which refuses assignment.

A subclass in its place would be a different type for every check and pickle. So the class's own
dictionary is changed, and the interpreter clears its method cache.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any


def replace_method(kind: type, name: str, method: Any) -> None:
    """Put `method` (or a descriptor) under `name` into the class itself."""
    # `vars` returns a proxy that refuses changes; the only object it refers to is the dictionary
    (table,) = (
        get_referent for get_referent in gc.get_referents(vars(kind)) if type(get_referent) is dict
    )
    table[name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
