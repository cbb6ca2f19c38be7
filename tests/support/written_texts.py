"""Collect everything that this project writes for people, as texts with their place.

Messages, hints and descriptions are the string constants of the source, taken from its syntax tree:
an f-string is one text, with `…` where a value goes. Pages are Markdown, YAML and templates.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from module_imports import parsed

ROOT = Path(__file__).resolve().parents[2]
VALUE = "…"
CODE_SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
PAGES = (
    *("*.md", "docs/*.md", "docs/results/*.md", "examples/**/*.md"),
    *("tests/*.md", "tests/hostile/*.md"),
)
YAML_FILES = ("action.yml", "*/action.yml", "examples/**/*.yml", ".github/**/*.yml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A text; `where` is its file and line. Only readers of the code see a `docstring`."""

    where: str
    text: str
    docstring: bool = False

    @property
    def is_message(self) -> bool:
        """True if a user may read the text; a single word is an argument or a name."""
        return not self.docstring and " " in self.text and ".py" in self.where


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A Markdown page."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """The page's path below the repository's root."""
        return self.path.relative_to(ROOT).as_posix()

    def blocks(self, *languages: str) -> list[str]:
        """Return the page's fenced blocks in one of these languages."""
        return [block for language, block in BLOCK.findall(self.text) if language in languages]

    def code_spans(self) -> list[str]:
        """Return the texts between backticks, outside of fenced blocks."""
        return [" ".join(span.split()) for span in CODE_SPAN.findall(BLOCK.sub("", self.text))]

    def anchors(self) -> set[str]:
        """Return the anchors to which links can lead: GitHub's names of the headings."""
        found: set[str] = set()
        for heading in HEADING.findall(BLOCK.sub("", self.text)):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
            slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            count = sum(
                one == slug or re.fullmatch(f"{slug}-[0-9]+", one) is not None for one in found
            )
            found.add(f"{slug}-{count}" if count else slug)
        return found


@cache
def pages() -> tuple[Page, ...]:
    """Return every Markdown page of the project, sorted by name."""
    paths = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    return tuple(Page(path=path, text=path.read_text("utf-8")) for path in sorted(paths))


@cache
def source_texts() -> tuple[Written, ...]:
    """Return the string constants of the program, and the texts of its page templates."""
    files = [*(ROOT / "gate").rglob("*.py"), ROOT / "container" / "start.py"]
    found = [written for path in sorted(files) for written in constants(path)]
    templates = sorted((ROOT / "gate").rglob("*.html"))
    return (*found, *(_whole(path) for path in templates))


@cache
def yaml_texts() -> tuple[Written, ...]:
    """Return the texts of actions, workflows and examples, including comments."""
    paths = {path for pattern in YAML_FILES for path in ROOT.glob(pattern)}
    return tuple(_whole(path) for path in sorted(paths))


def spoken() -> tuple[Written, ...]:
    """Return all texts: source, YAML and pages."""
    written = (Written(where=page.name, text=page.text) for page in pages())
    return (*source_texts(), *yaml_texts(), *written)


def constants(path: Path) -> Iterator[Written]:
    """Return the texts of one Python file; parts joined by `+` are one text."""
    docstrings = set()
    place = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    waiting: list[ast.AST] = [parsed(path)]
    while waiting:
        node = waiting.pop()
        if _has_docstring(node):
            docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined] # checked
        text = _text_of(node)
        if text is None:
            waiting.extend(ast.iter_child_nodes(node))
            continue
        where = f"{place}:{node.lineno}"  # type: ignore[attr-defined] # each expression has one
        yield Written(where=where, text=text, docstring=id(node) in docstrings)


def _has_docstring(node: ast.AST) -> bool:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None


def _text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) or VALUE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = (_text_of(node.left), _text_of(node.right))
        return None if sides == (None, None) else "".join(side or VALUE for side in sides)
    return None


def _whole(path: Path) -> Written:
    return Written(where=path.relative_to(ROOT).as_posix(), text=path.read_text("utf-8"))
