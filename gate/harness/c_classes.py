"""Replaces a method of a class of C, which refuses it by the ordinary way.

A subclass in its place would be another type for every check and pickle. So the class's own table
is changed, and the interpreter told to forget what it remembers of it.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any


def replace_method(kind: type, name: str, method: Any) -> None:
    """Put `method` (or a descriptor) under the name into the class itself."""
    # `vars` gives a proxy that refuses changes; the dictionary below it is all that it refers to
    (table,) = (
        get_referent for get_referent in gc.get_referents(vars(kind)) if type(get_referent) is dict
    )
    table[name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
