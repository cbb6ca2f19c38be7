"""Finds the line that draws from a generator between two steps, if only one line can do it.

The state of a generator shows that it was drawn from, but not where. So the files of the user's
modules are searched at the end, as for splits. A drawing call counts inside a loop or in a method
that every batch passes. A call that creates a layer or loader counts anywhere, since that draws
later. If two lines are possible, none is named.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from ..user_code import CodeLine, shown_file
from .splits import users_files

MAX_BYTES: Final = 300_000
PYTHON: Final = frozenset({
    "betavariate", "choice", "choices", "expovariate", "gauss", "getrandbits", "lognormvariate",
    "normalvariate", "randbytes", "randint", "random", "randrange", "sample", "shuffle",
    "triangular", "uniform",
})  # fmt: skip
NUMPY_OTHERS: Final = frozenset({
    "BitGenerator", "Generator", "MT19937", "PCG64", "PCG64DXSM", "Philox", "RandomState", "SFC64",
    "SeedSequence", "default_rng", "get_state", "seed", "set_state",
})  # fmt: skip
TORCH: Final = frozenset({
    "bernoulli", "multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm",
})  # fmt: skip
# layers that are created once and draw at every call
LAYERS: Final = ("Dropout", "AlphaDropout", "FeatureAlphaDropout")
EACH_BATCH: Final = frozenset({
    "__call__", "__getitem__", "__iter__", "__next__", "collate", "collate_fn", "forward",
    "training_step",
})  # fmt: skip
HINTS: Final = (b"rand", b"ropout", b"shuffle", b"normal", b"bernoulli", b"multinomial")


def draw_lines(drawn: Iterable[str]) -> dict[str, CodeLine]:
    """Return for each generator the one line that may have drawn from it.

    A generator with several such lines is left out.
    """
    names = set(drawn)
    lines: dict[str, dict[tuple[str, int], CodeLine]] = {}
    for file, source in users_files():
        if len(source) > MAX_BYTES or not any(hint in source for hint in HINTS):
            continue
        for generator, line in draws_in(source):
            place = CodeLine(shown_file(file), line)
            lines.setdefault(generator, {})[place.file, line] = place
    # torch's calls do not name a device; on a GPU they draw from CUDA's generator
    lines["cuda"] = lines.get("torch", {})
    # with both drawn from, nobody knows which line drew from which
    if {"cuda", "torch"} <= names:
        names -= {"cuda", "torch"}
    return {
        name: next(iter(places.values()))
        for name, places in lines.items()
        if name in names and len(places) == 1
    }


def draws_in(source: bytes) -> tuple[tuple[str, int], ...]:
    """Return generator and line of each draw; none if the source is not Python."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return tuple(_draws(module, repeated=False))


def _draws(node: ast.AST, *, repeated: bool) -> Iterator[tuple[str, int]]:
    waiting = [(node, repeated)]
    while waiting:
        this, again = waiting.pop()
        if isinstance(this, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            again = isinstance(this, ast.Lambda) or this.name in EACH_BATCH
        again = again or isinstance(this, ast.For | ast.AsyncFor | ast.While | ast.comprehension)
        if isinstance(this, ast.Call):
            generator = _generator_of(this, repeated=again)
            if generator:
                yield generator, this.lineno
        waiting += [(part, again) for part in ast.iter_child_nodes(this)]


def _generator_of(call: ast.Call, *, repeated: bool) -> str:
    above, _, name = _dotted(call.func).rpartition(".")
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    # such a call draws from a generator of the script's own
    if "generator" in keywords:
        return ""
    if name.startswith(LAYERS) or name == "RandomSampler" or _shuffles(name, keywords):
        return "torch"
    if not repeated:
        return ""
    if above == "random" and name in PYTHON:
        return "python"
    if above in {"np.random", "numpy.random"} and name not in NUMPY_OTHERS:
        return "numpy"
    dropout = name.startswith("dropout") and above.rpartition(".")[2] in {"F", "functional"}
    return "torch" if dropout or (above == "torch" and name in TORCH) else ""


def _shuffles(name: str, keywords: dict[str | None, ast.expr]) -> bool:
    asked = keywords.get("shuffle")
    # any expression but a literal False may be true at run time
    said = not isinstance(asked, ast.Constant) or bool(asked.value)
    return name.endswith("DataLoader") and asked is not None and said


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((node.id, *reversed(names)))
