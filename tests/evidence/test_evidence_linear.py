"""Every reader of a stranger's text takes under 20 times the CPU time for 8 times the text."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

import pytest
from growth import grows_too_fast

from gate.audit.repository_lines import unpinned_images, wish_list
from gate.audit.scripts import Script
from gate.baseline.folder import read_entry
from gate.errors import GateError
from gate.evidence.lock_readers import is_explicit, read_lock
from gate.evidence.metric_series import output_metrics
from gate.evidence.pinned_packages import read_pinned
from gate.package.keys import read_trusted_keys
from gate.pipelines.scaffold import find_trainings
from gate.publishing.registry_api import read_challenge
from gate.settings.load import parse_settings
from gate.system.git.changed_lines import _Reader
from gate.text.strict_json import parse_json
from gate.text.strict_syntax import parse_toml
from gate.text.strict_yaml import parse_yaml
from gate.text.untrusted_text import safe_block, safe_line
from gate.verdict.history_lines import read_history

# Times are measured, and following each line would take as long again.
pytestmark = pytest.mark.no_cover
# refused by their size where a reader has a limit below it; that is fine too
CHARACTERS = 40_000
# YAML is read slowly, and a square shows at these sizes too.
FEWER = {"yaml": 6_000, "environment.yml": 5_000, "settings": 5_000}
# what is put behind each other, again and again
PIECES = (
    *(" ", "\t", "\n", "a", "1", "-", ".", "=", "#", "@", ";", ",", ":", "&", "*", "\\", "\\\n"),
    *("[", "{", "(", '"', "'", "<", "a.", "a=", '"a".', "a ", "- ", "#sha256=", "[a]\n", "[[a]]\n"),
    *("a: b\n", "&a [*a, ", '{"a":', "[1,", "import a\n", "a.b", "f(", "\x1b[", "::", "##[", "@a"),
    *(
        "--hash=sha256:0 ",
        "a==1\n",
        "a==1 \\\n",
        "\u2028",
        "\u202e",
        "\\u0041",
        "1e9",
        "0x1",
        "+b/",
    ),
)
# the places of a file in which they stand
SHAPES: dict[str, tuple[str, ...]] = {
    "requirements": (
        "{}",
        "a{} x --hash=",
        "a[{}]==1",
        "a @ http://x/{}",
        "a=={} --hash=x",
        "a{}[",
    ),
    "conditions": ("a==1 ; {} --hash=x", "a==1 ; os_name == '{}'", "a==1+{} ; a", "a[{}]==1 ; a"),
    "toml": ("{}", "{}a = 1", "a = {}", 'a = "{}"', "[{}a]", "[[package]]\nname = '{}'"),
    "json": ("{}", '{{"a": {}', '"{}"', "[{}]"),
    "yaml": ("{}", "a: {}", "a: '{}'", "a: [{}]", "dependencies:\n- {}\n"),
    "python": ("{}", "import {}a", "from {}a import b", "a = '{}'", "{}a()", "from a import {}b"),
    "text": ("{}", "FROM {}", "FROM --a {} AS b", "@EXPLICIT\nhttp://{}", "packages:\n- conda: {}"),
}


def _script(text: str) -> object:
    return Script("a/train.py", text, frozenset({"a/b.py", "a/__init__.py"}))


def _patch(text: str) -> object:
    reader = _Reader()
    for line in f"diff --git a/x b/x\n+++ b/x\n@@ -1 +1 @@\n{text}".encode().splitlines(True):
        reader.take(line)
    return list(reader.hunks())


Read = Callable[[str], object]
READERS: dict[str, tuple[str, Read]] = {
    **{
        name: ("toml", lambda text, name=name: read_lock(name, text.encode()))  # type: ignore[misc] # bound here
        for name in ("uv.lock", "poetry.lock", "pylock.toml")
    },
    **{
        name: (shape, lambda text, name=name: read_lock(name, text.encode()))  # type: ignore[misc] # as above
        for name, shape in (
            ("requirements.txt", "requirements"),
            ("Pipfile.lock", "json"),
            ("kernels.lock", "json"),
            ("pixi.lock", "text"),
            ("conda.txt", "text"),
        )
    },
    "pins": ("requirements", lambda text: read_pinned("r.lock", text.encode())),
    "conditions": ("conditions", lambda text: read_pinned("r.lock", text.encode())),
    "pyproject.toml": ("toml", lambda text: wish_list("pyproject.toml", text.encode())),
    "wishes": ("requirements", lambda text: wish_list("requirements.txt", text.encode())),
    "environment.yml": ("yaml", lambda text: wish_list("environment.yml", text.encode())),
    "Dockerfile": ("text", lambda text: unpinned_images(text.encode())),
    "explicit": ("text", lambda text: is_explicit(text.encode())),
    "toml": ("toml", parse_toml),
    "yaml": ("yaml", lambda text: parse_yaml(text.encode(), "a")),
    "settings": ("yaml", lambda text: parse_settings(text.encode(), "a")),
    "json": ("json", lambda text: parse_json(text.encode(), "a")),
    "baseline": ("json", lambda text: read_entry(text.encode(), "a")),
    "keys": ("json", lambda text: read_trusted_keys(text.encode(), "a")),
    "history": ("json", lambda text: read_history(text.encode(), "a")),
    "script": ("python", _script),
    "trainings": ("python", lambda text: find_trainings({"train.py": text})),
    "output": ("text", lambda text: output_metrics(r"loss (?P<loss>\S+)", text.encode())),
    "line": ("text", safe_line),
    "block": ("text", safe_block),
    "patch": ("text", _patch),
    "challenge": ("text", read_challenge),
}


def _made(shape: str, piece: str, size: int) -> str:
    return shape.format(piece * (size // len(piece)))


def _reads(read: Read, shape: str, piece: str, size: int) -> None:
    with suppress(GateError, ValueError):
        read(_made(shape, piece, size))


# what reads all of a text first; where it refuses, nothing behind it sees the text
FIRST: dict[str, Read] = {
    "toml": parse_toml,
    "yaml": lambda text: parse_yaml(text.encode(), "a"),
}
SHORT = 200


@cache
def _is_refused_first(kind: str, shape: str, piece: str) -> bool:
    """Whether a short text of these pieces is refused, with an even number of them and an odd."""
    for number in (SHORT, SHORT + 1):
        try:
            FIRST[kind](shape.format(piece * number))
        except (GateError, ValueError):
            continue
        return False
    return True


@pytest.mark.parametrize("name", READERS)
def test_time_grows_in_proportion_to_the_text(name: str) -> None:
    kind, read = READERS[name]
    size = FEWER.get(name, CHARACTERS)
    behind = kind in FIRST and name not in FIRST
    found = [
        f"{one!r} with {piece!r}: {ratio:.1f} times"
        for one in SHAPES[kind]
        for piece in PIECES
        if not (behind and _is_refused_first(kind, one, piece))
        and (ratio := grows_too_fast(partial(_reads, read, one, piece), size))
    ]
    assert not found, "\n".join(found)
