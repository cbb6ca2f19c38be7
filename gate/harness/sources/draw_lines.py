"""The line that draws from a generator between two steps, where the user's code leaves no choice.

That a generator was drawn from is seen at its state; a line is found by looking through the files
of the user's modules at the end, as for splits. It counts inside a loop, in a method that every
batch passes, or where it makes a layer or a loader that draws later. Two such lines leave a choice,
and then none is named.
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
# made once, and drawn by later: layers and loaders
LAYERS: Final = ("Dropout", "AlphaDropout", "FeatureAlphaDropout")
EACH_BATCH: Final = frozenset({
    "__call__", "__getitem__", "__iter__", "__next__", "collate", "collate_fn", "forward",
    "training_step",
})  # fmt: skip
HINTS: Final = (b"rand", b"ropout", b"shuffle", b"normal", b"bernoulli", b"multinomial")


def draw_lines(drawn: Iterable[str]) -> dict[str, CodeLine]:
    """For each generator the only line that may have drawn from it; none where there are more."""
    names = set(drawn)
    lines: dict[str, dict[tuple[str, int], CodeLine]] = {}
    for file, source in users_files():
        if len(source) > MAX_BYTES or not any(hint in source for hint in HINTS):
            continue
        for generator, line in draws_in(source):
            place = CodeLine(shown_file(file), line)
            lines.setdefault(generator, {})[place.file, line] = place
    # torch's calls name no device: on a GPU they draw from that of CUDA
    lines["cuda"] = lines.get("torch", {})
    if {"cuda", "torch"} <= names:
        names -= {"cuda", "torch"}
    return {
        name: next(iter(places.values()))
        for name, places in lines.items()
        if name in names and len(places) == 1
    }


def draws_in(source: bytes) -> tuple[tuple[str, int], ...]:
    """Generator and line of each; none where the source is no Python."""
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
    # anything but False may be true when it runs
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
