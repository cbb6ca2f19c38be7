"""Move and merge modules of `gate/` by a plan, and follow their names: commits that only move.

    move_modules.py PLAN [--dry]

A line of PLAN says what one module is made of, by dotted names, in the order that they are to be
read; its comment is the docstring's first line where several become one:

    gate.system.git.repository <- gate.adapters.git.repository
    gate.system.git.commits <- gate.adapters.git.objects, gate.adapters.git.folder  # What it holds.
    gate.a.b:_old -> _new
    package gate.system.git  # Repositories, read without running what they configure.

The third form renames a name at the top of a module, which a merge asks for where two modules have
the same; the last one gives a new folder its docstring, and folders without modules go.

Imports keep their style (absolute or relative). `from p import module` becomes an import of the
module that it went into, and `module.name` follows. Dotted names and paths in texts (documents,
Makefile, strings) follow as whole words. Nothing is written unless all of it works; the formatter
and the linter's fixes (I, F401) have to run behind it.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CODE: Final = ("gate", "tests", "scripts", "benchmarks", "container", "examples")
TEXTS: Final = ("*.md", "*.toml", "*.yml", "*.sh", "Makefile", "Dockerfile", "*.j2")


class PlanError(Exception):
    """What the plan asks for cannot be done as it stands."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`made_of`: sources by new module; `renamed`: new names by old module and name."""

    made_of: Mapping[str, Sequence[str]]
    titles: Mapping[str, str]
    renamed: Mapping[tuple[str, str], str]
    new_of: Mapping[str, str]
    packages: Mapping[str, str]


def read_plan(text: str) -> Plan:
    """Read a plan; raises `PlanError` for a line of another form and a module named twice."""
    made_of: dict[str, Sequence[str]] = {}
    titles: dict[str, str] = {}
    renamed: dict[tuple[str, str], str] = {}
    new_of: dict[str, str] = {}
    packages: dict[str, str] = {}
    for line in text.splitlines():
        words, _, comment = line.partition("#")
        if not words.strip():
            continue
        if made := re.fullmatch(r"\s*([\w.]+)\s*<-\s*([\w., ]+?)\s*", words):
            sources = [source.strip() for source in made[2].split(",")]
            if made[1] in made_of or any(source in new_of for source in sources):
                message = f"named twice: {line}"
                raise PlanError(message)
            made_of[made[1]] = sources
            titles[made[1]] = comment.strip()
            new_of.update(dict.fromkeys(sources, made[1]))
        elif package := re.fullmatch(r"\s*package\s+([\w.]+)\s*", words):
            packages[package[1]] = comment.strip()
        elif name := re.fullmatch(r"\s*([\w.]+):(\w+)\s*->\s*(\w+)\s*", words):
            renamed[name[1], name[2]] = name[3]
        else:
            message = f"not understood: {line}"
            raise PlanError(message)
    return Plan(made_of, titles, renamed, new_of, packages)


def path_of(module: str) -> Path:
    """The file of a module; a package is its `__init__.py`."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def module_of(path: Path) -> str:
    """The dotted name of a file below the root."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(slots=True)
class Edit:
    """Replace the characters from `start` to `end` of a source."""

    start: int
    end: int
    text: str


class Source:
    """One file of Python as text and tree, and what a plan makes of its text."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.plan = plan
        self.module = module_of(path)
        self.new = plan.new_of.get(self.module, self.module)
        self.text = path.read_text()
        self.tree = ast.parse(self.text)
        self.lines = [0]
        for line in self.text.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line.encode()))
        self.bytes = self.text.encode()

    def place(self, node: ast.AST) -> tuple[int, int]:
        """Where a node's bytes begin and end."""
        assert isinstance(node, ast.stmt | ast.expr | ast.alias)  # noqa: S101 - for the types
        assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: S101, PT018 - as above
        start = self.lines[node.lineno - 1] + node.col_offset
        return start, self.lines[node.end_lineno - 1] + node.end_col_offset

    def followed(self) -> str:
        """The text with every import, and every name of what moved, as the plan has it."""
        edits = [*self._imports(), *self._own_names()]
        content = self.bytes
        for edit in sorted(edits, key=lambda one: one.start, reverse=True):
            content = content[: edit.start] + edit.text.encode() + content[edit.end :]
        return content.decode()

    def _own_names(self) -> Iterator[Edit]:
        """Renamed names of this very module, wherever they are used in it."""
        new_names = {
            old: new for (module, old), new in self.plan.renamed.items() if module == self.module
        }
        yield from self._uses(new_names)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in new_names:
                start, _ = self.place(node)
                at = self.bytes.index(node.name.encode(), start)
                yield Edit(at, at + len(node.name.encode()), new_names[node.name])

    def _uses(self, new_names: Mapping[str, str]) -> Iterator[Edit]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and node.id in new_names:
                yield Edit(*self.place(node), new_names[node.id])

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.module.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        kept = package[: len(package) - node.level + 1]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def _written(self, module: str, *, relative: bool) -> str:
        """A module as this file's imports name it, seen from where the file will be."""
        if not relative:
            return module
        here, there = self.new.split(".")[:-1], module.split(".")
        common = 0
        while common < min(len(here), len(there)) and here[common] == there[common]:
            common += 1
        return "." * (len(here) - common + 1) + ".".join(there[common:])

    def _imports(self) -> Iterator[Edit]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                yield from self._from(node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self.plan.new_of:
                        message = f"{self.path}: import {alias.name}: write it as from … import …"
                        raise PlanError(message)

    def _from(self, node: ast.ImportFrom) -> Iterator[Edit]:
        module = self._absolute(node)
        if not module.startswith("gate"):
            return
        relative = node.level > 0
        lines: dict[str, list[str]] = {}
        changed = self.plan.new_of.get(module, module) != module or (
            relative and self.new != self.module
        )
        for alias in node.names:
            inner = f"{module}.{alias.name}"
            changed = (
                changed or inner in self.plan.new_of or (module, alias.name) in self.plan.renamed
            )
            if inner in self.plan.new_of or (path_of(inner).is_file() and self.new != self.module):
                yield from self._of_module(alias, inner, lines, relative=relative)
                continue
            name = self.plan.renamed.get((module, alias.name), alias.name)
            new = self.plan.new_of.get(module, module)
            if new == self.new and self.new in self.plan.made_of:
                yield from self._inside(alias, name)
                continue
            lines.setdefault(self._written(new, relative=relative), []).append(
                name + (f" as {alias.asname}" if alias.asname else "")
            )
            if name != alias.name and not alias.asname:
                yield from self._uses({alias.name: name})
        if not changed:
            return
        indent = " " * node.col_offset
        written = [f"from {source} import {', '.join(names)}" for source, names in lines.items()]
        yield Edit(*self.place(node), f"\n{indent}".join(written) or "pass")

    def _inside(self, alias: ast.alias, name: str) -> Iterator[Edit]:
        """A name that is in the same file from now on: only its own name is left."""
        used = alias.asname or alias.name
        if used != name:
            yield from self._uses({used: name})

    def _of_module(
        self, alias: ast.alias, inner: str, lines: dict[str, list[str]], *, relative: bool
    ) -> Iterator[Edit]:
        """`from package import module [as used]`, and each `used.name` behind it."""
        new = self.plan.new_of.get(inner, inner)
        package, _, last = new.rpartition(".")
        used = alias.asname or alias.name
        if new == self.new and self.new in self.plan.made_of:
            for node in ast.walk(self.tree):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == used
                ):
                    name = self.plan.renamed.get((inner, node.attr), node.attr)
                    yield Edit(*self.place(node), name)
            return
        keeps = alias.asname is not None or alias.name == last or self._binds(last)
        shown = used if keeps else last
        kept = [last] if shown == last else [f"{last} as {shown}"]
        names = lines.setdefault(self._written(package, relative=relative), [])
        names.extend(one for one in kept if one not in names)
        if shown != used:
            yield from self._uses({used: shown})
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == used
                and (inner, node.attr) in self.plan.renamed
            ):
                _, end = self.place(node)
                new_name = self.plan.renamed[inner, node.attr]
                yield Edit(end - len(node.attr), end, new_name)

    def _binds(self, name: str) -> bool:
        """Whether this file uses the name for something else."""
        return any(
            (isinstance(node, ast.Name) and node.id == name)
            or (isinstance(node, ast.arg) and node.arg == name)
            or (isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name)
            for node in ast.walk(self.tree)
        )


def top_names(tree: ast.Module) -> Iterator[str]:
    """What a module defines at its top, imports aside."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def merged(new: str, texts: Mapping[str, str], title: str) -> str:
    """Several modules as one text; raises `PlanError` where two define the same name."""
    owners: dict[str, tuple[str, str]] = {}
    imports: list[str] = []
    bodies: list[str] = []
    docstrings: list[str] = []
    clashes: list[str] = []
    for old, text in texts.items():
        tree = ast.parse(text)
        if doc := ast.get_docstring(tree):
            docstrings.append(doc)
        rows = text.splitlines(keepends=True)
        kept_from = 0
        for node in tree.body:
            is_doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports.append(ast.get_source_segment(text, node) or "")
            elif isinstance(node, ast.Pass):
                pass
            elif not is_doc:
                break
            kept_from = node.end_lineno or 0
        body = "".join(rows[kept_from:])
        for name in top_names(tree):
            segment = name
            if name in owners and owners[name][0] != old:
                clashes.append(f"{new}: {owners[name][0]}:{name} and {old}:{name}")
            owners.setdefault(name, (old, segment))
        bodies.append(body.strip("\n"))
    if clashes:
        raise PlanError("\n".join(clashes))
    first = title or docstrings[0].splitlines()[0]
    rest = "\n\n".join("\n".join(doc.splitlines()[1:]).strip() for doc in docstrings).strip()
    doc = f'"""{first}\n\n{rest}\n"""' if rest else f'"""{first}"""'
    future = "from __future__ import annotations"
    unique = [one for one in dict.fromkeys(imports) if one != future]
    return "\n".join([doc, "", future, "", *unique, "", "", "\n\n\n".join(bodies), ""])


def text_pattern(plan: Plan) -> re.Pattern[str]:
    """Old modules as whole dotted names and as paths."""
    names = sorted(plan.new_of, key=len, reverse=True)
    dotted = "|".join(re.escape(name) for name in names)
    slashed = "|".join(re.escape(name.replace(".", "/")) for name in names)
    return re.compile(
        rf"(?<![\w./])(?:(?P<dotted>{dotted})(?![\w])|(?P<slashed>{slashed})(?=\.py\b))"
    )


def followed_text(text: str, plan: Plan, pattern: re.Pattern[str]) -> str:
    """A text whose dotted names and paths follow the plan."""

    def new(match: re.Match[str]) -> str:
        if dotted := match["dotted"]:
            return plan.new_of[dotted]
        return plan.new_of[match["slashed"].replace("/", ".")].replace(".", "/")

    return pattern.sub(new, text)


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows."""
    done = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def new_texts(plan: Plan) -> tuple[dict[Path, str], dict[Path, str]]:
    """The texts of the plan's modules by their new place, and of all that names them."""
    missing = [old for old in plan.new_of if not path_of(old).is_file()]
    if missing:
        raise PlanError("no such module: " + ", ".join(missing))
    pattern = text_pattern(plan)
    sources = (Source(path, plan) for path in tracked(*(f"{top}/*.py" for top in CODE)))
    texts = {one.path: followed_text(one.followed(), plan, pattern) for one in sources}
    written: dict[Path, str] = {}
    faults: list[str] = []
    for new, olds in plan.made_of.items():
        target = target_of(new)
        if len(olds) == 1:
            written[target] = texts[path_of(olds[0])]
            continue
        try:
            written[target] = merged(
                new, {old: texts[path_of(old)] for old in olds}, plan.titles[new]
            )
        except PlanError as fault:
            faults.append(str(fault))
    if faults:
        raise PlanError("\n".join(faults))
    moved = {path_of(old) for old in plan.new_of}
    others = {path: text for path, text in texts.items() if path not in moved}
    for path in tracked(*TEXTS):
        others[path] = followed_text(path.read_text(), plan, pattern)
    return written, others


def target_of(module: str) -> Path:
    """Where a new module will be."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def carry_out(plan: Plan, *, dry: bool) -> None:
    """Make all new texts first, then write them; raises `PlanError` before anything is written."""
    written, others = new_texts(plan)
    if dry:
        return
    aside = []
    for new, olds in plan.made_of.items():
        # aside first: a module may go where another one still is
        for number, old in enumerate(olds):
            kept = target_of(new).with_suffix(".moving") if number == 0 else None
            target_of(new).parent.mkdir(parents=True, exist_ok=True)
            if kept is None:
                git("rm", "-qf", str(path_of(old)))
            else:
                aside.append((path_of(old), kept, target_of(new)))
    for old_path, kept, _ in aside:
        git("mv", str(old_path), str(kept))
    for _, kept, target in aside:
        git("mv", str(kept), str(target))
    for path, text in {**others, **written}.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    mark_packages(plan)


def mark_packages(plan: Plan) -> None:
    """Give new folders their docstring, and remove those that hold no module any more."""
    for package, title in plan.packages.items():
        start = ROOT.joinpath(*package.split(".")) / "__init__.py"
        start.parent.mkdir(parents=True, exist_ok=True)
        start.write_text(f'"""{title}"""\n')
        git("add", str(start))
    for start in sorted(tracked("gate/*/__init__.py"), reverse=True):
        if not [
            one for one in start.parent.iterdir() if one.name not in {"__init__.py", "__pycache__"}
        ]:
            git("rm", "-qf", str(start))


def git(*words: str) -> None:
    """Call git in the project."""
    subprocess.run(["git", *words], cwd=ROOT, check=True)


def main() -> int:
    """Carry the plan out, or say why not."""
    parser = argparse.ArgumentParser(description="Move and merge modules by a plan.")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--dry", action="store_true", help="only say whether it works")
    options = parser.parse_args()
    try:
        carry_out(read_plan(options.plan.read_text()), dry=options.dry)
    except PlanError as fault:
        sys.exit(f"error: {fault}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
