"""Read lock files, which a pull request may have written; only the confined process does this.

Nothing is resolved and no address is contacted. A lock file is read only for the names, versions
and hashes in it. If a file is not a lock of a known kind, the result has a `problem` in words; no
exception is raised.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from gate.errors import DocumentError, EvidenceError
from gate.evidence.lock_files import MAX_FILES, MAX_LOCK_BYTES, LockedPackage, LockFile, LockKind
from gate.text.strict_json import parse_json
from gate.text.strict_syntax import parse_toml
from gate.text.untrusted_text import plain_text, short_text
from gate.training.environment import MAX_PACKAGE_TEXT, MAX_PACKAGES, normalized_name

EXPLICIT: Final = "@EXPLICIT"
MAX_VERSIONS: Final = 100
MAX_PROBLEM: Final = 500
# Packages from these sources are part of the commit itself, so there is nothing to lock.
OWN_SOURCES: Final = ("editable", "virtual", "directory", "path", "workspace")
CONDA_ENDS: Final = (".conda", ".tar.bz2")
_NAME: Final = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$")
# The repetitions are possessive (`*+`, from Python 3.11), so the matcher never backtracks. A pull
# request may write any line, and its time is still proportional to its length.
_PINNED: Final = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*+)\s*+(?:\[[^\]]*+\])?+\s*+===?\s*+"
    r"(?P<version>[^\s;,*]++)\s*+(?:;.*+)?$"
)
_DIRECT: Final = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*+)\s*+(?:\[[^\]]*+\])?+\s*+@\s*+(?P<url>\S++)"
)
_COMMIT: Final = re.compile(r"@(?P<commit>[0-9a-f]{40})(?:#|$)")
_FRAGMENT_HASH: Final = re.compile(r"sha256=[0-9a-fA-F]++")
_HASH_OPTION: Final = re.compile(r"\s--hash[= ]\s*+(\S++)")
_DIGEST: Final = re.compile(r"^[0-9a-fA-F]+$")
_PYLOCK: Final = re.compile(r"^pylock\.(?:[^.]+\.)?toml$")
_PIXI_KEY: Final = re.compile(r"^(?:- |  )(?P<key>[a-z_0-9]+): (?P<value>\S.*)$")
# options of a requirements file that do not name a package
_NO_PACKAGE: Final = re.compile(
    r"^(?:-i|--index-url|--extra-index-url|--no-index|-f|--find-links|--no-binary|--only-binary"
    r"|--prefer-binary|--require-hashes|--pre|--trusted-host|--use-feature|-c|--constraint)\b"
)
_OWN_CODE: Final = re.compile(r"^(?:-e\s|--editable\b|\.{1,2}(?:/|$|\[)|file:)")

PackageLines = Iterator[tuple[str, str, Iterable[str]]]


def read_lock(path: str, data: bytes) -> LockFile:
    """Return a lock file as a record; `problem` says what is wrong with an unreadable file."""
    digest = hashlib.sha256(data).hexdigest()
    try:
        kind, content = _opened(path, data)
        packages = _gathered(content)
    except (EvidenceError, DocumentError) as error:
        problem = error.message
    except ValueError as error:
        # raised for invalid TOML, and for values that its reader or `urlsplit` cannot represent
        problem = str(error)
    except RecursionError:
        problem = "nested too deep"
    except MemoryError:
        problem = "takes too much memory to read"
    else:
        return LockFile(path=path, sha256=digest, kind=kind, packages=packages)
    return LockFile(path=path, sha256=digest, problem=plain_text(problem)[:MAX_PROBLEM])


def is_explicit(data: bytes) -> bool:
    """Return whether a file is a list of addresses from `conda list --explicit`."""
    return any(line.strip() == EXPLICIT.encode() for line in data.splitlines())


def is_pylock(name: str) -> bool:
    """Return whether PEP 751 allows this name for a lock file: pylock.toml or pylock.NAME.toml."""
    return _PYLOCK.match(name) is not None


def has_hashes(data: bytes) -> bool:
    """Return whether a requirements file is a lock; without hashes it may be only a wish list."""
    return b"--hash=" in data or b"--hash " in data


def _opened(path: str, data: bytes) -> tuple[LockKind, PackageLines]:
    if len(data) > MAX_LOCK_BYTES:
        raise EvidenceError(f"{len(data):,} bytes, the limit is {MAX_LOCK_BYTES:,}")
    name = PurePosixPath(path).name
    if name.endswith("Pipfile.lock"):
        return LockKind.PIPFILE, _pipfile(_table(parse_json(data, path), "the file"))
    if name.endswith("kernels.lock"):
        return LockKind.KERNELS, _kernels(parse_json(data, path))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EvidenceError(f"not UTF-8 at byte {error.start}") from error
    return _text_opened(name, text)


def _text_opened(name: str, text: str) -> tuple[LockKind, PackageLines]:
    tables = {
        "uv.lock": (LockKind.UV, _uv),
        "poetry.lock": (LockKind.POETRY, _poetry),
        "pylock.toml": (LockKind.PYLOCK, _pylock),
    }
    usual = "pylock.toml" if is_pylock(name) else name
    for ending, (kind, read) in tables.items():
        if usual.endswith(ending):
            return kind, read(parse_toml(text))
    if name.endswith("pixi.lock"):
        return LockKind.PIXI, _pixi(text)
    if is_explicit(text.encode("utf-8")):
        return LockKind.CONDA, _conda(text)
    return LockKind.REQUIREMENTS, _requirements(text)


def _gathered(lines: PackageLines) -> tuple[LockedPackage, ...]:
    """Return one record for each package name.

    A lock may have several versions of a package for different environment markers; all are kept.
    """
    versions: dict[str, dict[str, None]] = {}
    hashes: dict[str, dict[str, None]] = {}
    for name, version, files in lines:
        if not _NAME.match(name) or len(name) > MAX_PACKAGE_TEXT:
            raise EvidenceError(f"{short_text(name)} is not the name of a package")
        if not version.isprintable() or len(version) > MAX_PACKAGE_TEXT:
            raise EvidenceError(f"{name}: {short_text(version)} is not a version")
        key = normalized_name(name)
        versions.setdefault(key, {})[version] = None
        hashes.setdefault(key, {}).update((_checked_hash(text, name), None) for text in files)
        if len(versions) > MAX_PACKAGES:
            raise EvidenceError(f"more than {MAX_PACKAGES:,} packages")
        if len(hashes[key]) > MAX_FILES or len(versions[key]) > MAX_VERSIONS:
            raise EvidenceError(f"{name}: more than {MAX_FILES:,} files or {MAX_VERSIONS} versions")
    return tuple(
        LockedPackage(
            name=key, versions=tuple(sorted(filter(None, named))), hashes=tuple(sorted(hashes[key]))
        )
        for key, named in sorted(versions.items())
    )


def _checked_hash(text: str, name: str) -> str:
    """Return a hash as `algorithm:hex`; its number of digits has to fit the algorithm.

    Raises `EvidenceError` for any other text: a truncated hash locks nothing.
    """
    algorithm, _, digits = text.partition(":")
    lengths = {"git": (40, 64), **_DIGITS}.get(algorithm)
    # A digest of zeros only is a placeholder that somebody filled in by hand.
    if (
        lengths is None
        or len(digits) not in lengths
        or not _DIGEST.match(digits)
        or not digits.strip("0")
    ):
        raise EvidenceError(f"{name}: {short_text(text)} is not the hash of a file")
    return f"{algorithm}:{digits.lower()}"


# only the length of a digest is used, so md5 may be created where it is blocked for security
_DIGITS: Final = {
    name: (2 * hashlib.new(name, usedforsecurity=False).digest_size,)
    for name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")
}


def _requirements(text: str) -> PackageLines:
    """Yield the packages of a requirements file; each line has to name exactly one version.

    https://pip.pypa.io/en/stable/reference/requirements-file-format/
    """
    for number, line in _logical_lines(text):
        if not line or _NO_PACKAGE.match(line) or _OWN_CODE.match(line):
            continue
        hashes = _HASH_OPTION.findall(line)
        direct = _DIRECT.match(line)
        if direct is not None:
            yield direct["name"], "", [*hashes, *_of_address(direct["url"])]
            continue
        pinned = _PINNED.match(_HASH_OPTION.sub(" ", line).strip())
        if pinned is None:
            raise EvidenceError(f"line {number} names no single version: {short_text(line)}")
        yield pinned["name"], pinned["version"], hashes


def _of_address(url: str) -> Iterator[str]:
    """Yield what an address itself says about its content: a commit, or a digest after `#`."""
    commit = _COMMIT.search(url)
    if commit is not None:
        yield f"git:{commit['commit']}"
    for part in url.partition("#")[2].split("&"):
        if digest := _FRAGMENT_HASH.match(part):
            yield digest[0].replace("=", ":")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, each with the number of its first line.

    A backslash at the end of a line continues it on the next one.
    """
    begun: list[str] = []
    first = 1
    for number, raw in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(?:^|\s)#.*$", "", raw).rstrip()
        first = first if begun else number
        begun.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield first, " ".join(begun).strip()
            begun = []
    if begun:
        yield first, " ".join(begun).strip()


def _uv(document: Mapping[str, Any]) -> PackageLines:
    """https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile."""
    for package in _tables(document.get("package"), "package"):
        source = _table(package.get("source", {}), "source")
        if not set(OWN_SOURCES).isdisjoint(source):
            continue
        files = [package.get("sdist"), *_items(package.get("wheels"), "wheels")]
        hashes = [
            _word(file, "hash") for file in files if isinstance(file, dict) and "hash" in file
        ]
        if "git" in source:
            hashes.append(f"git:{urlsplit(_word(source, 'git')).fragment}")
        yield _word(package, "name"), str(package.get("version", "")), hashes


def _poetry(document: Mapping[str, Any]) -> PackageLines:
    # lock files of format 1 list the files of all packages in `metadata`
    older = _table(_table(document.get("metadata", {}), "metadata").get("files", {}), "files")
    for package in _tables(document.get("package"), "package"):
        source = _table(package.get("source", {}), "source")
        name = _word(package, "name")
        if source.get("type") in {"directory", "file"}:
            continue
        files = _items(package.get("files", older.get(name, [])), "files")
        hashes = [_word(file, "hash") for file in files if isinstance(file, dict)]
        if source.get("type") == "git":
            hashes = [f"git:{_word(source, 'resolved_reference')}"]
        yield name, _word(package, "version"), hashes


def _pipfile(document: Mapping[str, Any]) -> PackageLines:
    if "_meta" not in document:
        raise EvidenceError("has no _meta, as every Pipfile.lock has")
    for section in ("default", "develop"):
        for name, about in _table(document.get(section, {}), section).items():
            package = _table(about, "a package")
            if package.get("editable") or "path" in package:
                continue
            hashes = [str(text) for text in _items(package.get("hashes", []), "hashes")]
            if "git" in package:
                hashes = [f"git:{_word(package, 'ref')}"]
            yield name, str(package.get("version", "")).removeprefix("=="), hashes


def _conda(text: str) -> PackageLines:
    """Yield name, version and hash of each address `…/numpy-2.0.1-py311h1_0.conda#md5`.

    The file name ends with the build, which is left out.
    """
    for number, line in _logical_lines(text):
        if not line or line == EXPLICIT:
            continue
        address, _, digest = line.partition("#")
        file = urlsplit(address).path.rpartition("/")[2]
        ending = next((ending for ending in CONDA_ENDS if file.endswith(ending)), "")
        parts = file.removesuffix(ending).rsplit("-", 2)
        if not ending or len(parts) < 3:  # noqa: PLR2004 - name, version, build
            raise EvidenceError(
                f"line {number} is not the address of a package: {short_text(line)}"
            )
        kind = "sha256" if len(digest.removeprefix("sha256:")) > _DIGITS["md5"][0] else "md5"
        hashes = [f"{kind}:{digest.removeprefix('sha256:')}"] if digest else []
        yield parts[0], parts[1], hashes


def _pylock(document: Mapping[str, Any]) -> PackageLines:
    """https://packaging.python.org/en/latest/specifications/pylock-toml/."""
    if not str(document.get("lock-version", "")).startswith("1."):
        raise EvidenceError("has no lock-version 1, as a pylock.toml has")
    for package in _tables(document.get("packages"), "packages"):
        if "directory" in package:
            continue
        named = [package.get(kind) for kind in ("sdist", "archive") if kind in package]
        files = [*named, *_items(package.get("wheels"), "wheels")]
        hashes = [
            f"{algorithm}:{digits}"
            for file in files
            for algorithm, digits in _table(_table(file, "a file").get("hashes"), "hashes").items()
            # PEP 751 allows other algorithms, but no installed package has a recorded hash to
            # compare
            if algorithm in _DIGITS
        ]
        if "vcs" in package:
            hashes.append(f"git:{_word(_table(package['vcs'], 'vcs'), 'commit-id')}")
        yield _word(package, "name"), str(package.get("version", "")), hashes


def _pixi(text: str) -> PackageLines:
    """Yield the packages of the list `packages`: https://pixi.sh/latest/workspace/lockfile/.

    Pixi writes one key a line, and its files have about a megabyte. They are read line by line,
    because the strict YAML reader is too slow for that size.
    """
    entries: list[dict[str, str]] = []
    inside = False
    for line in text.splitlines():
        if line[:1] not in {" ", "-", ""}:
            inside = line.rstrip() == "packages:"
        elif inside and (entries or line.startswith("- ")) and (match := _PIXI_KEY.match(line)):
            if line.startswith("- "):
                entries.append({})
            entries[-1].setdefault(match["key"], match["value"].strip("'\""))
    if not entries:
        raise EvidenceError("has no list of packages, as a pixi.lock has")
    for entry in entries:
        yield from _pixi_package(entry)


def _pixi_package(entry: Mapping[str, str]) -> PackageLines:
    address = entry.get("conda") or entry.get("pypi") or entry.get("url") or ""
    file = urlsplit(address).path.rpartition("/")[2]
    ending = next((ending for ending in CONDA_ENDS if file.endswith(ending)), "")
    parts = file.removesuffix(ending).rsplit("-", 2) if ending else []
    name = entry.get("name") or (parts[0] if parts else "")
    version = entry.get("version") or (parts[1] if len(parts) > 1 else "")
    if not version and not urlsplit(address).netloc:
        # an entry without a version and without a host is a folder of the project
        return
    kinds = [kind for kind in ("sha256", "md5") if kind in entry]
    yield name, version, [f"{kind}:{entry[kind]}" for kind in kinds[:1]]


def _kernels(document: object) -> PackageLines:
    """Yield the commit of each kernel: https://huggingface.co/docs/kernels/cli-lock."""
    for kernel in _tables(document, "the file"):
        commit = _word(kernel, "sha")
        variants = _table(kernel.get("variants", {}), "variants").values()
        files = [_word(_table(variant, "a variant"), "hash") for variant in variants]
        hashes = [f"git:{commit}", *(file.replace("-", ":", 1) for file in files)]
        yield f"kernel-{_word(kernel, 'repo_id').replace('/', '-')}", commit, hashes


def _table(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise EvidenceError(f"{what} is no table")
    return value


def _items(value: object, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise EvidenceError(f"{what} is not a list")
    return value


def _tables(value: object, what: str) -> Iterator[Mapping[str, Any]]:
    return (_table(item, what) for item in _items(value, what))


def _word(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str):
        raise EvidenceError(f"a package has no {key}")
    return value
