"""The seal files beside a package: their names, and the statement that each contains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gate.errors import AttestationError
from gate.package.seal_records import SealFile, StatementKind
from gate.system.files.port import Files
from gate.text.package_names import MAX_SEAL_BYTES

PACKAGE: Final = "package.tar"
BARE_SUFFIX: Final = ".dsse.json"
BUNDLE_SUFFIX: Final = ".sigstore.json"
PROVENANCE_BARE_SUFFIX: Final = ".provenance.dsse.json"
PROVENANCE_BUNDLE_SUFFIX: Final = ".provenance.sigstore.json"
MODEL_SUFFIX: Final = ".model.sig"
SUFFIXES: Final = {
    BARE_SUFFIX: StatementKind.VERDICT,
    BUNDLE_SUFFIX: StatementKind.VERDICT,
    PROVENANCE_BARE_SUFFIX: StatementKind.PROVENANCE,
    PROVENANCE_BUNDLE_SUFFIX: StatementKind.PROVENANCE,
    MODEL_SUFFIX: StatementKind.MODEL,
}
MAX_SEALS: Final = 16


def seal_path(package: Path, suffix: str) -> Path:
    """Return the path of a seal: beside the package, with its own suffix."""
    return package.with_suffix(suffix)


def seal_paths(package: Path) -> tuple[Path, ...]:
    """Return the paths of all seals that a package can have; a key or an identity makes some."""
    return tuple(seal_path(package, suffix) for suffix in SUFFIXES)


def seal_file_names(kind: StatementKind, package: Path) -> str:
    """Return the file names in which a statement of this kind may be, for a message."""
    suffixes = [suffix for suffix, held in SUFFIXES.items() if held is kind]
    return " or ".join(seal_path(package, suffix).name for suffix in suffixes)


def seal_file(package: Path, suffix: str, content: bytes) -> SealFile:
    """Return a seal with the file name that it has beside a package."""
    name = seal_path(package, suffix).name
    return SealFile(name=name, content=content, kind=SUFFIXES[suffix])


def write_seals(seals: Sequence[SealFile], package: Path, files: Files) -> None:
    """Write all seals beside the package."""
    for seal in seals:
        files.write_bytes(package.with_name(seal.name), seal.content)


def seal_places(
    package: Path, files: Files, chosen: Sequence[Path] = ()
) -> tuple[tuple[Path, StatementKind | None], ...]:
    """Return the seals to verify, each with the statement that its name promises.

    The seals are the `chosen` files, or all beside the package. The statement is None for a file
    with a name of its own. Raises `AttestationError` for no seal and for more than `MAX_SEALS`.
    """
    kinds = dict(zip(seal_paths(package), SUFFIXES.values(), strict=True))
    paths = chosen or [path for path in kinds if files.exists(path)]
    if not paths:
        raise AttestationError(
            f"no seal found next to {package.name}",
            hint=f"Put {seal_file_names(StatementKind.VERDICT, package)} there, with the other "
            "seals, or name them with --seal. The gate seals only a pass, and only if it is given "
            "a key or may use the job's identity.",
        )
    if len(paths) > MAX_SEALS:
        raise AttestationError(
            f"{len(paths)} seals were named, the limit is {MAX_SEALS}",
            hint="Name each statement once, bare or as a bundle.",
        )
    return tuple((path, kinds.get(path)) for path in paths)


def find_seals(package: Path, files: Files, chosen: Sequence[Path] = ()) -> tuple[SealFile, ...]:
    """Read the seals of `seal_places`; raises `StorageError` for one that cannot be read."""
    return tuple(
        SealFile(
            name=path.name, content=files.read_bytes(path, max_bytes=MAX_SEAL_BYTES), kind=kind
        )
        for path, kind in seal_places(package, files, chosen)
    )
