"""One module changes the file system by path; all others ask it, or name their reason here."""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple

from module_imports import GATE, parsed

# runs inside the training, under its account and its sandbox, and imports nothing of the gate
TRAINING = "harness"
WRITERS = {"system/files/writing.py"}


class Excepted(NamedTuple):
    """Calls that may name a path by themselves, and why no link of a commit can be in their way."""

    module: str
    calls: frozenset[str]
    why: str


EXCEPTIONS = (
    Excepted(
        "isolation/private_view.py",
        frozenset(("mkdir", "chmod", "chown", "mknod", "write_bytes")),
        "in a fresh mount namespace, in memory that was mounted there a moment before",
    ),
    Excepted(
        "isolation/page_cache.py",
        frozenset(("mkdir", "rmdir", "write_text", "open")),
        "in the kernel's tree of control groups, where root alone writes; and a file that is new",
    ),
    Excepted(
        "isolation/sandbox_launcher.py",
        frozenset(("open",)),
        "a file of that tree, before anything of the training has begun",
    ),
    Excepted(
        "system/output_streams.py",
        frozenset(("open",)),
        "the null device, which keeps nothing",
    ),
    Excepted(
        "isolation/accounts.py",
        frozenset(("utime",)),
        "of a descriptor, which was opened in a folder that is the gate's alone",
    ),
)
# methods of pathlib.Path that change something, by how many positional arguments they take: a
# string has a `replace` with two, the port `Files` a `write_bytes` with two
METHODS = {
    "write_text": {1, 2, 3},
    "write_bytes": {1},
    "unlink": {0},
    "rmdir": {0},
    "mkdir": {0, 1},
    "touch": {0, 1},
    "rename": {1},
    "replace": {1},
    "symlink_to": {1},
    "hardlink_to": {1},
    "chmod": {1},
    "lchmod": {1},
}
OF_THE_SYSTEM = {
    *("mkdir", "makedirs", "mkfifo", "mknod", "remove", "unlink", "rmdir", "removedirs"),
    *("rename", "renames", "replace", "link", "symlink", "chmod", "lchmod", "chown", "lchown"),
    *("truncate", "utime", "setxattr", "removexattr"),
}
SHUTIL = {
    "copy",
    "copy2",
    "copyfile",
    "copymode",
    "copystat",
    "copytree",
    "move",
    "rmtree",
    "chown",
}
OTHERS = {"compile_dir", "compile_file", "extractall", "mkdtemp", "mkstemp"}
WRITING_FLAGS = ("O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC", "O_APPEND")
BY_DESCRIPTOR = {"dir_fd", "src_dir_fd", "dst_dir_fd"}


def _flag_names(trees: dict[str, ast.Module]) -> set[str]:
    """Constants that hold flags for writing, wherever they are."""
    return {
        target.id
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else (node.target,))
        if isinstance(target, ast.Name)
        if any(flag in ast.unparse(node.value) for flag in WRITING_FLAGS)
    }


def _changes(call: ast.Call, flags: set[str]) -> str:
    """The name of what changes the file system by a path; empty for every other call."""
    function, words = call.func, {word.arg: word.value for word in call.keywords}
    if isinstance(function, ast.Name):
        return "open" if function.id == "open" and _writes(call, words, 1) else ""
    if not isinstance(function, ast.Attribute) or BY_DESCRIPTOR & words.keys():
        return ""
    owner, name = ast.unparse(function.value), function.attr
    if owner == "os":
        given = " ".join(ast.unparse(one) for one in call.args[1:2])
        writes = any(flag in given for flag in (*WRITING_FLAGS, *flags))
        by_number = bool(call.args) and "descriptor" in ast.unparse(call.args[0])
        found = (name == "open" and writes) or (name in OF_THE_SYSTEM and not by_number)
    elif owner == "shutil":
        found = name in SHUTIL
    elif name == "open":
        found = _writes(call, words, 0)
    else:
        found = name in OTHERS or (len(call.args) in METHODS.get(name, set()) and _of_a_path(call))
    return name if found else ""


def _of_a_path(call: ast.Call) -> bool:
    """Not a record's or a time's `replace`, which takes names alone, nor the writing module's."""
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    return owner not in {"writing", "trees"}


def _writes(call: ast.Call, words: dict[str | None, ast.expr], place: int) -> bool:
    mode = words.get("mode", call.args[place] if len(call.args) > place else None)
    if not isinstance(mode, ast.Constant) or not set(str(mode.value)) <= set("rwaxbt+"):
        # another `open`, such as that of an archive; the built-in one is not left to chance
        return mode is not None and isinstance(call.func, ast.Name)
    return bool(set("wax+") & set(str(mode.value)))


@cache
def _offenders() -> tuple[tuple[str, str, int], ...]:
    """Module, call and line."""
    trees = {
        path.relative_to(GATE).as_posix(): parsed(path)
        for path in sorted(GATE.rglob("*.py"))
        if path.relative_to(GATE).parts[0] != TRAINING
    }
    flags = _flag_names(trees)
    return tuple(
        (module, name, call.lineno)
        for module, tree in trees.items()
        if module not in WRITERS
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and (name := _changes(call, flags))
    )


def test_only_one_module_changes_the_file_system_by_path() -> None:
    allowed = {(one.module, call) for one in EXCEPTIONS for call in one.calls}
    found = [
        f"gate/{module}:{line} {name}"
        for module, name, line in _offenders()
        if (module, name) not in allowed
    ]
    assert not found, "\n".join(
        ("call gate/system/files/writing.py, or add an exception with its reason:", *found)
    )


def test_every_exception_is_still_needed() -> None:
    used = {(module, name) for module, name, _ in _offenders()}
    allowed = {(one.module, call) for one in EXCEPTIONS for call in one.calls}
    assert allowed - used == set()
