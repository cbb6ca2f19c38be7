"""Words that the glossary has retired stand in no message, finding code, file, page or name."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache

from each_row import each_row
from module_imports import parsed
from written_texts import ROOT, Written, pages, source_texts, yaml_texts

GLOSSARY = "docs/glossary.md"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
# The same word for another thing, in these places.
OTHER_THINGS = {
    "tamper": {
        ".github/dependabot.yml": "a release that somebody changed",
    },
    "canary": {
        "docs/security.md": "a secret that is planted to see where it turns up",
        "tests/hostile/page.md": "a secret that is planted to see where it turns up",
    },
    "fence": {"gate/report/escape.py": "Markdown's block of code"},
    "unattested child": {
        "gate/evidence/observations.py": "the class `UnattestedChild`, which keeps its old name"
    },
}

# Participles and the like that say nothing of what they name: a noun does.
VAGUE = frozenset(
    ("told", "found", "one", "each", "brought", "wanted", "settled", "senses", "edges")
)
# What is left of them are fields of documents that users keep.
LEFT = frozenset(
    (
        "AuditItem.found",
        "Examined.found",
        "GpuMissed.found",
        "NotFiniteResult.brought",
        "ProvisionalEntry.brought",
        "UnlikeRank.found",
        "Verdict.brought",
    )
)


def retired() -> dict[str, str]:
    """Each word of the glossary's left column, and what stands in its place."""
    text = (ROOT / GLOSSARY).read_text("utf-8")
    rows = ROW.findall(text[text.rindex("| not | but |") :])[1:]
    return {word.strip(): instead for words, instead in rows for word in words.split(",")}


RETIRED = retired()


@cache
def spoken() -> tuple[Written, ...]:
    """All that a user may read, and the names of all files."""
    return tuple(_spoken())


def _spoken() -> Iterator[Written]:
    yield from (written for written in source_texts() if not written.docstring)
    yield from yaml_texts()
    yield from (
        Written(where=page.name, text=page.text) for page in pages() if page.name != GLOSSARY
    )
    listed = subprocess.run(
        ("git", "ls-files", "--cached", "--others", "--exclude-standard"),  # noqa: S607 - the PATH's own
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        yield Written(where=name, text=re.sub(r"[_/-]", " ", name))
    for path, tree in trees().items():
        # what no retired word has between its parts
        yield Written(where=path, text="; ".join(sorted(set(map(in_words, bound_names(tree))))))


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax of every file of the program, by its path."""
    files = sorted((ROOT / "gate").rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): parsed(file) for file in files}


def in_words(name: str) -> str:
    """`TakenFile` and `taken_file` as `taken file`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("_", " ").strip()


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Every name that a file gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def fields(tree: ast.AST) -> Iterator[str]:
    """The fields that classes declare, as `Class.field`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    yield f"{node.name}.{member.target.id}"


def vague_names(path: str, tree: ast.AST) -> list[str]:
    """The names that say nothing of what they name, but for the fields that are left."""
    kept = [field.rpartition(".")[2] for field in fields(tree) if field in LEFT]
    vague = [name for name in bound_names(tree) if in_words(name) in VAGUE]
    for name in kept:
        vague.remove(name)
    return [f"{path}: {name}" for name in vague]


def mentions(word: str, texts: Iterable[Written]) -> list[str]:
    """Where a word, or one made of it, is used for what the field calls otherwise."""
    parts = r"[\s_-]+".join(re.escape(part) for part in word.split())
    pattern = re.compile(rf"(?<![a-z]){parts}(s|ed|ing|ies)?(?![a-z])", re.IGNORECASE)
    allowed = OTHER_THINGS.get(word, {})
    first, *_ = word.split()
    return [
        written.where
        for written in texts
        # a pattern that may begin anywhere is slow to find nothing
        if first in lowered(written.text)
        and pattern.search(written.text)
        and written.where.partition(":")[0] not in allowed
    ]


@cache
def lowered(text: str) -> str:
    """A text in small letters, made once for all words."""
    return text.lower()


def test_the_glossary_names_what_it_retires() -> None:
    assert {"guest", "census", "tamper", "hostile file"} <= RETIRED.keys()
    assert all(instead.strip() for instead in RETIRED.values())


@each_row("word", RETIRED)
def test_a_retired_word_is_used_nowhere(word: str) -> None:
    assert mentions(word, spoken()) == []


def test_each_exception_is_still_there() -> None:
    for word, places in OTHER_THINGS.items():
        for place in places:
            text = place + (ROOT / place).read_text("utf-8").lower()
            assert word.replace(" ", "") in text.replace(" ", "")


def test_no_name_but_the_fields_left_is_a_vague_word() -> None:
    assert [name for path, tree in trees().items() for name in vague_names(path, tree)] == []
    assert {field for tree in trees().values() for field in fields(tree)} >= LEFT


def test_no_row_of_a_table_is_torn() -> None:
    torn = []
    for page in pages():
        cells = 0
        for line in page.text.splitlines():
            own = line.replace("\\|", "").count("|") if line.startswith("|") else 0
            if cells and own not in {0, cells}:
                torn.append(f"{page.name}: {line[:60]}")
            cells = own
    assert torn == []


def test_a_name_is_read_by_its_words_wherever_it_is_bound() -> None:
    tree = ast.parse("class OldGuest:\n    def told(self, found: int) -> None: ...\nwanted = 1\n")
    assert set(map(in_words, bound_names(tree))) >= {"old guest", "told", "found"}
    assert sorted(vague_names("a.py", tree)) == ["a.py: found", "a.py: told", "a.py: wanted"]


def test_a_vague_name_of_a_loop_is_seen_too() -> None:
    tree = ast.parse("[one for one in range(3)]\nfor each in (): pass\nlambda told: told\n")
    assert sorted(vague_names("a.py", tree)) == ["a.py: each", "a.py: one", "a.py: told"]


@each_row(
    "text",
    ["The guest saw it.", "code `told-runs`", "a hostile  file", "census_view", "Siblings wait."],
)
def test_a_mention_is_found_in_any_form(text: str) -> None:
    assert any(mentions(word, iter([Written(where="x.py:1", text=text)])) for word in RETIRED)


def test_a_word_that_only_holds_one_is_another_word() -> None:
    texts = [Written(where="x.py:1", text="guestimate, defence, indeed, incensus")]
    assert not any(mentions(word, iter(texts)) for word in RETIRED)


def test_a_documents_version_names_the_document_and_no_module() -> None:
    version = re.compile(r"repro-gate\.[\w.-]+/\d+\Z")
    versions = {written.text for written in source_texts() if version.match(written.text)}
    assert {"repro-gate.verdict/1", "repro-gate.doctor/1"} <= versions
    assert [text for text in versions if not re.match(r"repro-gate\.[a-z-]+/\d", text)] == []
