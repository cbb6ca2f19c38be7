"""Find lines of a script that seed, draw, read data or change a setting, from its syntax only.

A line that never runs looks like any other, and arguments that are computed are not known. So a
failure names the line, and a pass is never based on this alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from gate.audit.items import LineKind, ScriptLine
from gate.text.strict_syntax import python_syntax

# for one file; more than people write
MAX_NODES: Final = 200_000
# For one name and its folders. Each name is tried in each folder, so long ones would take quadratic
# time.
MAX_NAME: Final = 500
MAX_PARTS: Final = 32
MAX_ROOTS: Final = 64


def parsed(text: str) -> tuple[ast.AST, ...] | None:
    """Return all syntax nodes of a file, or None if it cannot be parsed or is too large."""
    tree = python_syntax(text)
    if tree is None:
        return None
    nodes = tuple(islice(ast.walk(tree), MAX_NODES + 1))
    return nodes if len(nodes) <= MAX_NODES else None


def imported_names(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Map local names to imported ones: `np` to `numpy`, `seed` to `random.seed`."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if len(alias.name) > MAX_NAME:
                    continue
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if len(node.module) > MAX_NAME:
                continue
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Return `numpy.random.seed` for `np.random.seed`; for another value only `.manual_seed`."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(names.get(node.id, node.id) if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def imported_files(path: str, nodes: Iterable[ast.AST], files: frozenset[str]) -> Iterator[str]:
    """Yield the files among `files` that a file's imports lead to."""
    folder = PurePosixPath(path).parent
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _imported_files(alias.name, _roots(folder), files)
        elif isinstance(node, ast.ImportFrom):
            level = (folder, *folder.parents)[node.level - 1 : node.level] if node.level else ()
            roots = tuple(level) if node.level else _roots(folder)
            module = node.module or ""
            if len(module) > MAX_NAME:
                continue
            yield from _imported_files(module, roots, files)
            for alias in node.names:
                yield from _imported_files(f"{module}.{alias.name}".strip("."), roots, files)


def _roots(folder: PurePosixPath) -> tuple[PurePosixPath, ...]:
    """Return where an absolute import may begin: the script's folder, those above, and `src`."""
    above = (folder, *folder.parents)[: MAX_ROOTS // 2]
    return (*above, *(place / "src" for place in above))


def _imported_files(
    module: str, roots: tuple[PurePosixPath, ...], files: frozenset[str]
) -> Iterator[str]:
    if len(module) > 2 * MAX_NAME or module.count(".") >= MAX_PARTS:
        return
    parts = module.split(".") if module else []
    for root in roots:
        for name in (root.joinpath(*parts).as_posix() + ".py" if parts else "",
                     root.joinpath(*parts, "__init__.py").as_posix()):  # fmt: skip
            if name in files:
                yield name


MAX_LINES: Final = 200
MAX_WHAT: Final = 120
ALL: Final = "all"
PYTHON, NUMPY, TORCH = "random", "numpy", "torch"
SEEDING: Final[Mapping[str, str]] = {
    "random.seed": PYTHON,
    "random.Random": PYTHON,
    "numpy.random.seed": NUMPY,
    "numpy.random.default_rng": NUMPY,
    "numpy.random.RandomState": NUMPY,
    "torch.manual_seed": TORCH,
    "torch.random.manual_seed": TORCH,
    "torch.cuda.manual_seed": TORCH,
    "torch.cuda.manual_seed_all": TORCH,
    "transformers.set_seed": ALL,
    "transformers.enable_full_determinism": ALL,
    "accelerate.utils.set_seed": ALL,
    "lightning.seed_everything": ALL,
    "pytorch_lightning.seed_everything": ALL,
}
# methods of any object: `torch.Generator().manual_seed(1)`, `L.seed_everything(1)`
SEEDING_ENDS: Final[Mapping[str, str]] = {"seed_everything": ALL, "manual_seed": TORCH}
# calls that give a different number in each run
ENTROPY: Final = re.compile(
    r"^(?:time\.|datetime\.|os\.(?:urandom|getpid)|secrets\.|uuid\.|random\.SystemRandom|torch\.seed)"
)
DRAWING: Final = re.compile(
    r"^(?P<library>random|numpy\.random|torch)\."
    r"(?:rand\w*|shuffle|choices?|sample|permutation|normal\w*|uniform|gauss|integers|bernoulli"
    r"|multinomial|betavariate|triangular|standard_normal|nn\.(?:\w+\.)*[A-Z]\w*)$"
)
READING: Final = frozenset(
    (
        *("open", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile"),
        *("numpy.memmap", "numpy.lib.format.open_memmap"),
        *("torch.load", "h5py.File", "PIL.Image.open", "torchvision.datasets.ImageFolder"),
        *("safetensors.torch.load_file", "json.load", "pickle.load"),
    )
)
READING_FORMS: Final = re.compile(
    r"^(?:pandas|polars)\.(?:read|scan)_\w+$|^pyarrow\.\w+\.read_\w+$"
)
DOWNLOADING: Final = re.compile(
    r"^(?:datasets\.load_dataset|torch\.hub\.\w+|urllib\.request\.(?:urlopen|urlretrieve)"
    r"|requests\.(?:get|request)|huggingface_hub\.\w*download|sklearn\.datasets\.fetch_\w+"
    r"|wget\.download|gdown\.download)$|\.from_pretrained$"
)
# downloads by another program: `os.system("wget …")`, `subprocess.run(["curl", …])`
STARTING: Final = re.compile(
    r"^(?:os\.system|subprocess\.(?:run|call|check_call|check_output|Popen))$"
)
DOWNLOADER: Final = re.compile(
    r"^(?:wget|curl|aria2c|gdown|aws s3|gsutil|huggingface-cli|kaggle)\b"
)
# A file read inside one of these calls is executed, and is not data:
# `exec(open("configurator.py").read())`.
RUNNING: Final = frozenset(("exec", "eval", "compile", "runpy.run_path"))
# with one of these arguments, a download names one version of its content
PINNING: Final = frozenset(("revision", "known_hash", "sha256", "hash"))
SWITCHES: Final[Mapping[str, bool]] = {
    "torch.backends.cudnn.benchmark": True,
    "torch.backends.cudnn.deterministic": False,
    "torch.utils.deterministic.fill_uninitialized_memory": True,
}
LOOSE_WORDS: Final[Mapping[str, bool]] = {
    "deterministic": False,
    "benchmark": True,
    "in_order": False,
}
WRITING: Final = re.compile(r"[wax+]")


class Script:
    """One parsed file: the lines that an audit looks at, and the files that it imports.

    `files` are the files that an import may lead to. The syntax tree is not kept, because it takes
    a hundred times the memory of the text.
    """

    def __init__(self, path: str, text: str, files: frozenset[str] = frozenset()) -> None:
        self.path = path
        nodes = parsed(text)
        self.readable = nodes is not None
        self._names = imported_names(nodes or ())
        self.imports = frozenset(imported_files(path, nodes or (), files)) - {path}
        self.modules = frozenset(name.partition(".")[0] for name in self._names.values())
        self._run = {
            id(inner)
            for node in nodes or ()
            if isinstance(node, ast.Call) and dotted(node.func, self._names) in RUNNING
            for inner in ast.walk(node)
        }
        # string constants in the arguments of reading calls, with their lines: `memmap(join(folder,
        # "train.bin"))`
        self.read_texts: list[tuple[int, str]] = []
        # sorted by line; a very long list is cut after `MAX_LINES`
        calls = sorted(
            set(self._lines(nodes or ())), key=lambda call: (call.line, call.kind, call.what)
        )
        self.lines = tuple(calls[:MAX_LINES])

    def _lines(self, nodes: Iterable[ast.AST]) -> Iterator[ScriptLine]:
        for node in nodes:
            if isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, ast.Assign):
                yield from self._assigned(node)

    def _line(self, node: ast.expr, kind: LineKind, what: str, subject: str = "") -> ScriptLine:
        return ScriptLine(
            file=self.path,
            line=node.lineno,
            kind=kind,
            what=what.lstrip(".")[:MAX_WHAT],
            subject=subject[:MAX_WHAT],
        )

    def _call(self, node: ast.Call) -> Iterator[ScriptLine]:
        name = dotted(node.func, self._names)
        last = name.rpartition(".")[2]
        library = SEEDING.get(name) or SEEDING_ENDS.get(last)
        if library:
            yield self._seed(node, name, library)
        drawing = DRAWING.match(name)
        if drawing is not None:
            yield self._line(node, LineKind.DRAWS, name, drawing["library"].partition(".")[0])
        if (name in READING or READING_FORMS.match(name)) and id(node) not in self._run:
            yield from self._read(node, name)
        downloads = any(word.arg == "download" and _is(word.value, True) for word in node.keywords)
        pinned = any(word.arg in PINNING for word in node.keywords)
        downloads = downloads or bool(STARTING.match(name) and DOWNLOADER.match(_started(node)))
        if (DOWNLOADING.search(name) and not pinned) or downloads:
            yield from self._downloaded(node, name)
        yield from self._loose_words(node, last)

    def _seed(self, node: ast.Call, name: str, library: str) -> ScriptLine:
        given = [*node.args, *(word.value for word in node.keywords)]
        sources = (
            dotted(inner.func, self._names)
            for value in given
            for inner in ast.walk(value)
            if isinstance(inner, ast.Call)
        )
        entropy = sorted(source for source in sources if ENTROPY.match(source))
        # `default_rng(None)` and `seed(None)` take their seed from the machine, as without an
        # argument.
        none = bool(given) and all(_is(value, None) for value in given)
        if entropy:
            return self._line(node, LineKind.UNSEEDED, f"{name}({entropy[0]}())", library)
        if not given or none:
            return self._line(node, LineKind.UNSEEDED, f"{name}()", library)
        return self._line(node, LineKind.SEEDS, name, library)

    def _read(self, node: ast.Call, name: str) -> Iterator[ScriptLine]:
        mode = next((word.value for word in node.keywords if word.arg == "mode"), None)
        mode = node.args[1] if mode is None and name == "open" and len(node.args) > 1 else mode
        writes = isinstance(mode, ast.Constant) and WRITING.search(str(mode.value))
        if not writes:
            self.read_texts += [
                (node.lineno, inner.value)
                for inner in ast.walk(node)
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
            ]
            yield self._line(node, LineKind.READS, name, _literal(node))

    def _downloaded(self, node: ast.Call, name: str) -> Iterator[ScriptLine]:
        # A local folder is loaded by the same call as a name on a hub, which has a slash.
        if name.endswith(".from_pretrained") and "/" not in _literal(node):
            return
        yield self._line(node, LineKind.DOWNLOADS, name, _literal(node))

    def _loose_words(self, node: ast.Call, last: str) -> Iterator[ScriptLine]:
        if last == "use_deterministic_algorithms":
            off = bool(node.args) and _is(node.args[0], False)
            warns = any(word.arg == "warn_only" and _is(word.value, True) for word in node.keywords)
            if off or warns:
                what = f"{last}({'False' if off else 'warn_only=True'})"
                yield self._line(node, LineKind.FLAG, what)
        if last.endswith(("Trainer", "DataLoader")):
            for word in node.keywords:
                loose = LOOSE_WORDS.get(word.arg or "")
                if loose is not None and _is(word.value, loose):
                    yield self._line(node, LineKind.FLAG, f"{last}({word.arg}={loose})")

    def _assigned(self, node: ast.Assign) -> Iterator[ScriptLine]:
        for target in node.targets:
            name = dotted(target, self._names) if isinstance(target, ast.Attribute) else ""
            if name in SWITCHES and _is(node.value, SWITCHES[name]):
                yield self._line(target, LineKind.FLAG, f"{name} = {SWITCHES[name]}")


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _started(node: ast.Call) -> str:
    """Return the command in a call, as far as it is written out."""
    first = node.args[0] if node.args else None
    if not isinstance(first, ast.List | ast.Tuple):
        return _literal(node)
    words = (elt.value for elt in first.elts if isinstance(elt, ast.Constant))
    return " ".join(map(str, words))


def _literal(node: ast.Call) -> str:
    """Return the path or name in a call if it is written out; empty if it is computed."""
    first = node.args[0] if node.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value
    return ""
