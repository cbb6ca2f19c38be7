"""Which files of a work tree are trainings: told from their syntax, nothing of them is run."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from gate.pipelines.records_scaffold import Training
from gate.text.python_syntax import python_syntax

FRAMEWORKS: Final = ("torch", "lightning", "pytorch_lightning", "transformers", "accelerate")
TRAINING_NAME: Final = re.compile(r"(?:main|(?:pre|run_|fine_?)?(?:train|tun)(?:e|ing)?(?:_\w+)?)")
# `main.py` may be anything; these say by their name alone that they train
TELLING_NAME: Final = re.compile(r"(?:pre|run_)?train(?:ing)?(?:_\w+)?|fine_?tun(?:e|ing)(?:_\w+)?")
NO_TRAINING: Final = re.compile(r"test_.*|.*_test|conftest|setup|__init__")
# calls of a script that is nothing but statements: `trainer.fit(model)`
STARTS: Final = frozenset(("backward", "fit", "train"))
TEST_FOLDERS: Final = frozenset(("test", "tests", "site-packages"))
# looked at only where there is no training elsewhere
OUTSKIRTS: Final = frozenset(("docs", "doc", "example", "examples", "benchmark", "benchmarks"))


def find_trainings(sources: Mapping[str, str]) -> tuple[Training, ...]:
    """The scripts that look like a training, the likeliest first; `sources` maps paths to texts.

    A script is one that does something when it is started. It trains when it imports torch or a
    framework above it and calls `backward`, `fit` or a trainer, or has the name of a training.
    Where none does, a script counts that has the name alone.
    """
    looked = [found for path in sorted(sources) for found in _looked_at(path, sources)]
    central = [found for found in looked if not OUTSKIRTS & set(_parts(found[1].script))]
    for sure in (True, False):
        for choice in (central, looked):
            ranked = [training for sign, training in choice if sign == sure]
            if ranked:
                return tuple(sorted(ranked, key=_order))
    return ()


def _parts(path: str) -> tuple[str, ...]:
    return PurePosixPath(path).parts


def _order(training: Training) -> tuple[bool, bool, int, str]:
    path = PurePosixPath(training.script)
    likely = (path.stem != "train", TRAINING_NAME.fullmatch(path.stem) is None)
    return *likely, len(path.parts), training.script


def _looked_at(path: str, sources: Mapping[str, str]) -> Iterator[tuple[bool, Training]]:
    """Whether its text shows a training, and the training; nothing for what is none."""
    stem = PurePosixPath(path).stem
    if NO_TRAINING.fullmatch(stem) or TEST_FOLDERS & set(_parts(path)):
        return
    named = TRAINING_NAME.fullmatch(stem) is not None
    text = sources[path]
    # most files have none of these words, and parsing all of a large project takes a while
    if not named and not any(name in text for name in FRAMEWORKS):
        return
    tree = python_syntax(text)
    if tree is None or not _is_script(tree):
        return
    framework = next((name for name in FRAMEWORKS if name in set(_imports(tree))), "")
    sign = _sign(tree)
    if framework and (sign or named):
        why = f"imports {framework} and {sign or 'has the name of a training'}"
        yield True, _training(path, _packages_above(path, tree, sources), why)
    elif TELLING_NAME.fullmatch(stem):
        why = "has the name of a training"
        yield False, _training(path, _packages_above(path, tree, sources), why)


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _is_script(tree: ast.Module) -> bool:
    """Whether a module does something when it is started, beside defining names."""
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return any(
        isinstance(node, ast.For | ast.While)
        or (isinstance(node, ast.If) and _names_main(node.test))
        or (isinstance(node, ast.Expr) and _called(node.value) in own | STARTS)
        for node in _statements(tree.body)
    )


def _names_main(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Constant) and node.value == "__main__" for node in ast.walk(test)
    )


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What is executed at the start, within `with` and `try` too."""
    for node in body:
        yield node
        if isinstance(node, ast.With | ast.Try):
            yield from _statements(node.body)


def _sign(tree: ast.Module) -> str:
    """What in a module trains, in words; the empty text when nothing does."""
    called = {_called(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for name in ("backward", "manual_backward", "fit"):
        if name in called:
            return f"calls {name}()"
    trainer = next((name for name in sorted(called) if name.endswith("Trainer")), "")
    return f"makes a {trainer}" if trainer else ""


def _called(node: ast.AST) -> str:
    """The last name of what a call calls, such as `backward` of `loss.backward()`."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _packages_above(path: str, tree: ast.Module, sources: Mapping[str, str]) -> int:
    """How many folders above a script are packages that its relative imports need; 0 without."""
    levels = (node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    parts = _parts(path)
    # `from ..data import x` needs two packages above the script
    depth = max(levels, default=0)
    if not 0 < depth < len(parts):
        return 0
    above = len(parts) - 1 - depth
    # the outermost package: others of its modules are imported by its name
    while above and f"{'/'.join(parts[:above])}/__init__.py" in sources:
        above -= 1
    return len(parts) - 1 - above


def _training(path: str, packages: int, why: str) -> Training:
    """The command that starts a script; one with relative imports starts as a module."""
    if not packages:
        return Training(command=shlex.join(("python", path)), script=path, why=why)
    parts = _parts(path)
    above = len(parts) - 1 - packages
    module = ".".join((*parts[above:-1], PurePosixPath(path).stem))
    return Training(
        command=shlex.join(("python", "-m", module)),
        workdir="/".join(parts[:above]) or ".",
        script=path,
        why=why,
    )
