"""Lock files as the tools write them, spoilt ones, and what two of them differ in."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from each_row import each_row
from evidence_cases import evidence_of
from hypothesis import given
from hypothesis import strategies as st
from packaging.pylock import Pylock

from gate.evidence.lock_files import (
    MAX_LOCK_BYTES,
    LockedPackage,
    LockFile,
    LockKind,
    changed_locks,
    differing_packages,
    unlike_installed,
)
from gate.evidence.lock_readers import has_hashes, is_explicit, read_lock
from gate.training.environment import Environment

A, B = "a" * 64, "b" * 64
LOCK_NAMES = (
    *("uv.lock", "poetry.lock", "Pipfile.lock", "requirements.txt"),
    *("pylock.toml", "pixi.lock", "kernels.lock"),
)
REQUIREMENTS = f"""\
# made by a tool
--index-url https://example.org/simple
-e .
Torch==2.13.0 ; python_version >= "3.11" \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
    # via -r requirements.in
numpy[extra]==2.0.1 --hash=sha256:{B}
library @ git+https://example.org/team/library.git@{"c" * 40}
"""
UV = f"""\
version = 1
requires-python = ">=3.11"

[[package]]
name = "my-project"
version = "0.1.0"
source = {{ editable = "." }}

[[package]]
name = "numpy"
version = "2.0.1"
source = {{ registry = "https://example.org/simple" }}
sdist = {{ url = "https://example.org/numpy.tar.gz", hash = "sha256:{A}", size = 1 }}
wheels = [{{ url = "https://example.org/numpy.whl", hash = "sha256:{B}", size = 1 }}]

[[package]]
name = "library"
version = "1.0"
source = {{ git = "https://example.org/library?rev=main#{"c" * 40}" }}
"""
POETRY = f"""\
[[package]]
name = "numpy"
version = "2.0.1"
files = [{{ file = "numpy.whl", hash = "sha256:{A}" }}]

[[package]]
name = "library"
version = "1.0"
files = []

[package.source]
type = "git"
resolved_reference = "{"c" * 40}"

[metadata]
lock-version = "2.1"
"""
PIPFILE = {
    "_meta": {"pipfile-spec": 6},
    "default": {
        "numpy": {"hashes": [f"sha256:{A}"], "version": "==2.0.1"},
        "mine": {"editable": True, "path": "."},
    },
    "develop": {"pytest": {"hashes": [f"sha256:{B}"], "version": "==8.3"}},
}
CONDA = f"""\
# This file may be used to create an environment using:
@EXPLICIT
https://example.org/main/linux-64/numpy-2.0.1-py311h24aa872_0.conda#{"d" * 32}
https://example.org/main/noarch/tz-data-2024a-0.tar.bz2
"""


def packages_of(name: str, text: str | bytes) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    data = text.encode() if isinstance(text, str) else text
    lock = read_lock(name, data)
    assert lock.problem == ""
    return {package.name: (package.versions, package.hashes) for package in lock.packages}


def test_requirements_with_hashes() -> None:
    assert packages_of("requirements.txt", REQUIREMENTS) == {
        "library": ((), (f"git:{'c' * 40}",)),
        "numpy": (("2.0.1",), (f"sha256:{B}",)),
        "torch": (("2.13.0",), (f"sha256:{A}", f"sha256:{B}")),
    }
    assert has_hashes(REQUIREMENTS.encode())
    assert not has_hashes(b"numpy==2.0\n")


def test_uv_poetry_and_pipenv() -> None:
    commit = (f"git:{'c' * 40}",)
    assert packages_of("uv.lock", UV) == {
        "library": (("1.0",), commit),
        "numpy": (("2.0.1",), (f"sha256:{A}", f"sha256:{B}")),
    }
    assert packages_of("sub/poetry.lock", POETRY) == {
        "library": (("1.0",), commit),
        "numpy": (("2.0.1",), (f"sha256:{A}",)),
    }
    assert packages_of("Pipfile.lock", json.dumps(PIPFILE)) == {
        "numpy": (("2.0.1",), (f"sha256:{A}",)),
        "pytest": (("8.3",), (f"sha256:{B}",)),
    }


def test_a_list_that_conda_wrote() -> None:
    assert packages_of("conda-linux-64.txt", CONDA) == {
        "numpy": (("2.0.1",), (f"md5:{'d' * 32}",)),
        "tz-data": (("2024a",), ()),
    }
    assert read_lock("x.txt", CONDA.encode()).kind is LockKind.CONDA
    assert is_explicit(CONDA.encode())
    assert not is_explicit(REQUIREMENTS.encode())


PYLOCK = f"""\
lock-version = "1.0"
created-by = "a tool"

[[packages]]
name = "numpy"
version = "2.0.1"
sdist = {{ url = "https://example.org/numpy-2.0.1.tar.gz", hashes = {{ sha256 = "{A}" }} }}
wheels = [{{ url = "https://x.org/numpy-2.0.1-py3-none-any.whl", hashes = {{ sha256 = "{B}" }} }}]

[[packages]]
name = "library"
vcs = {{ type = "git", url = "https://example.org/library", commit-id = "{"c" * 40}" }}

[[packages]]
name = "mine"
directory = {{ path = ".", editable = true }}
"""
PIXI = f"""\
version: 6
environments:
  default:
    channels:
    - url: https://conda.example.org/forge/
    packages:
      linux-64:
      - conda: https://conda.example.org/forge/linux-64/numpy-2.0.1-py311h1_0.conda
packages:
- conda: https://conda.example.org/forge/linux-64/numpy-2.0.1-py311h1_0.conda
  sha256: {A}
  md5: {"d" * 32}
  depends:
  - python >=3.11,<3.12.0a0
  license: BSD-3-Clause
- pypi: https://files.example.org/torch-2.13.0-py3-none-any.whl
  name: torch
  version: 2.13.0
  sha256: {B}
- pypi: ./
  name: mine
  requires_python: '>=3.11'
"""
KERNELS = [
    {
        "repo_id": "team/activation",
        "sha": "c" * 40,
        "variants": {"torch213-cu130": {"hash": f"sha256-{A}", "hash_type": "git_lfs_concat"}},
    }
]


@pytest.mark.parametrize("name", ["pylock.toml", "lab/pylock.train.toml"])
def test_pylock_as_the_standard_has_it(name: str) -> None:
    assert packages_of(name, PYLOCK) == {
        "library": ((), (f"git:{'c' * 40}",)),
        "numpy": (("2.0.1",), (f"sha256:{A}", f"sha256:{B}")),
    }
    assert read_lock(name, PYLOCK.encode()).kind is LockKind.PYLOCK


def test_the_lock_of_the_standard_is_read_as_its_own_library_reads_it() -> None:
    known = Pylock.from_dict(tomllib.loads(PYLOCK))
    named = {package.name for package in known.packages if package.directory is None}
    assert set(packages_of("pylock.toml", PYLOCK)) == named


def test_pixi_and_kernels() -> None:
    assert packages_of("pixi.lock", PIXI) == {
        "numpy": (("2.0.1",), (f"sha256:{A}",)),
        "torch": (("2.13.0",), (f"sha256:{B}",)),
    }
    assert packages_of("kernels.lock", json.dumps(KERNELS)) == {
        "kernel-team-activation": (("c" * 40,), (f"git:{'c' * 40}", f"sha256:{A}")),
    }


def test_a_kernel_that_moved_is_told_and_no_package_of_that_name_is_meant() -> None:
    before = read_lock("kernels.lock", json.dumps(KERNELS).encode())
    after = read_lock("kernels.lock", json.dumps([{**KERNELS[0], "sha": "e" * 40}]).encode())
    (move,) = differing_packages(before, after)
    assert (move.name, move.before, move.after) == (
        "kernel-team-activation",
        "c" * 40,
        "e" * 40,
    )


def test_the_locks_of_this_repository_are_read() -> None:
    files = sorted((Path(__file__).resolve().parents[2] / "requirements").glob("*.txt"))
    locks = [
        read_lock(file.name, file.read_bytes()) for file in files if has_hashes(file.read_bytes())
    ]
    assert locks
    assert all(lock.packages and not lock.problem for lock in locks)


def test_a_package_that_markers_choose_a_version_of_has_both() -> None:
    text = f"""
    numpy==1.26 ; python_version < "3.10" --hash=sha256:{A}
    numpy==2.0 ; python_version >= "3.10" --hash=sha256:{B}
    """
    assert packages_of("requirements.txt", text)["numpy"][0] == ("1.26", "2.0")


@each_row(
    ("name", "text", "problem"),
    [
        ("requirements.txt", "numpy>=2\n", "line 1 names no single version: 'numpy>=2'"),
        ("requirements.txt", "\n-r other.txt\n", "line 2 names no single version: '-r other.txt'"),
        ("requirements.txt", "a==1.*\n", "line 1 names no single version: 'a==1.*'"),
        ("requirements.txt", "a==1 --hash=sha256:12", "a: 'sha256:12' is not the hash of a file"),
        ("requirements.txt", f"a==1 --hash=sha9:{A}", f"a: 'sha9:{A}' is not the hash of a file"),
        ("requirements.txt", "a==\x1b[2J", "a: '\\x1b[2J' is not a version"),
        ("uv.lock", "package = 3", "package is not a list"),
        ("uv.lock", "[[package]]\nversion = '1'", "a package has no name"),
        ("uv.lock", "[[package]]\nname = '../x'", "'../x' is not the name of a package"),
        ("uv.lock", "x = " + "[" * 100_000, "nested too deep"),
        ("poetry.lock", "[[package]]\nname = 'a'", "a package has no version"),
        ("Pipfile.lock", "{}", "has no _meta, as every Pipfile.lock has"),
        ("pylock.toml", "x = 1", "has no lock-version 1, as a pylock.toml has"),
        ("pixi.lock", "version: 6\n", "has no list of packages, as a pixi.lock has"),
        ("kernels.lock", "{}", "the file is not a list"),
        ("conda.txt", "@EXPLICIT\nhello", "line 2 is not the address of a package: 'hello'"),
        ("uv.lock", b"\xff", "not UTF-8 at byte 0"),
    ],
)
def test_what_is_no_lock_says_why(name: str, text: str | bytes, problem: str) -> None:
    lock = read_lock(name, text.encode() if isinstance(text, str) else text)
    assert (lock.problem, lock.packages) == (problem, ())


def test_a_lock_beyond_the_limit_is_not_parsed() -> None:
    lock = read_lock("uv.lock", b"#" * (MAX_LOCK_BYTES + 1))
    assert lock.problem == "8,388,609 bytes, the limit is 8,388,608"


@given(st.sampled_from(LOCK_NAMES), st.binary())
def test_any_bytes_are_a_lock_or_a_problem(name: str, data: bytes) -> None:
    lock = read_lock(name, data)
    assert bool(lock.problem) <= (lock.packages == ())
    assert lock.problem.isprintable()


def lock_of(path: str = "uv.lock", sha256: str = A, **versions: str) -> LockFile:
    packages = tuple(LockedPackage(name=name, versions=(text,)) for name, text in versions.items())
    return LockFile(path=path, sha256=sha256, packages=packages)


locks = st.dictionaries(st.sampled_from("abc"), st.sampled_from("123")).map(
    lambda versions: lock_of(**versions)
)


@given(locks, locks)
def test_two_locks_differ_alike_from_either_side(one: LockFile, other: LockFile) -> None:
    assert differing_packages(one, one) == ()
    there, back = differing_packages(one, other), differing_packages(other, one)
    assert [(m.name, m.before, m.after) for m in there] == [
        (m.name, m.after, m.before) for m in back
    ]


def test_one_version_from_other_files_differs_and_more_files_do_not() -> None:
    one, more, other = (
        LockFile(path="a", packages=(LockedPackage(name="x", versions=("1",), hashes=hashes),))
        for hashes in ((f"sha256:{A}",), (f"sha256:{A}", f"sha256:{B}"), (f"sha256:{B}",))
    )
    assert differing_packages(one, more) == ()
    (move,) = differing_packages(one, other)
    assert move.described == "x 1 → 1 from other files"


def test_what_a_pull_request_brings_is_told_by_lock() -> None:
    before = (lock_of(torch="2.12.0", same="1"), lock_of("old.lock"))
    after = (lock_of(sha256=B, torch="2.13.0", same="1"), lock_of("new.lock"))
    assert [(change.path, change.moved) for change in changed_locks(before, after)] == [
        ("new.lock", ()),
        ("old.lock", ()),
        ("uv.lock", ("torch 2.12.0 → 2.13.0",)),
    ]
    assert changed_locks(before, before) == ()


@each_row(
    ("locked", "installed", "unlike"),
    [
        ("2.13.0", "2.13.0+cpu", False),
        ("2.13.0+cu128", "2.13.0+cpu", True),
        ("1.0", "1.0.0", False),
        ("2024.02.01", "2024.2.1", False),
        ("1.0rc1", "1.0", True),
        ("2", "1", True),
    ],
)
def test_versions_compare_as_pip_compares_them(locked: str, installed: str, unlike: bool) -> None:  # noqa: FBT001 - a column of the table
    here = Environment(parts={}, packages=(f"A_lib=={installed}",))
    lock = LockFile(path="x", packages=(LockedPackage(name="a-lib", versions=(locked,)),))
    moves = unlike_installed((lock,), here)
    assert [move.compared for move in moves] == (
        [f"a-lib {installed} instead of {locked}"] if unlike else []
    )


def test_only_what_is_imported_and_named_by_no_lock_in_this_version_is_unlike() -> None:
    here = evidence_of().environment.model_copy(
        update={
            "packages": ("a==1", "b==1", "c==1", "d==1", "e==1"),
            "imported": ("a", "b", "d", "e"),
            "ignored": ("d",),
            "origins": {"e": f"archive sha256:{B}"},
        }
    )
    hashed = LockedPackage(name="e", versions=("1",), hashes=(f"sha256:{A}",))
    others = (
        lock_of(a="2", b="1", c="2", d="2"),
        lock_of("b.txt", b="3"),
        LockFile(path="c.txt", packages=(hashed,)),
    )
    assert [move.compared for move in unlike_installed(others, here)] == [
        "a 1 instead of 2",
        f"e 1 of archive sha256:{B} instead of 1 of the files that the lock names",
    ]


@each_row(
    ("name", "data"),
    [
        ("uv.lock", b"x = " + b"9" * 5000),
        ("uv.lock", b'[[package]]\nname="a"\nversion="1"\nsource={git="http://[x"}\n'),
        ("requirements.txt", b"a @ http://[x"),
        ("conda.txt", b"@EXPLICIT\nhttp://[x/y.conda#abc"),
        ("poetry.lock", b"[[" * 2000),
        ("Pipfile.lock", b"[" * 5000),
    ],
)
def test_what_cannot_be_made_a_value_is_a_problem_and_no_fault(name: str, data: bytes) -> None:
    lock = read_lock(name, data)
    assert lock.packages == () or not lock.problem
    assert lock.problem.isprintable()
