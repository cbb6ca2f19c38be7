"""Opens what `repro-gate digest` and `repro-gate diff` are pointed at: states, and packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gate.attestation.packing.member_index import (
    RUN_MEMBER,
    looks_like_package,
    member_index,
)
from gate.attestation.packing.ustar import BLOCK_BYTES
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.formats.safetensors_reader import read_safetensors
from gate.checkpoint.leaves import StateContent
from gate.checkpoint.sources.file_part import file_part
from gate.checkpoint.sources.untrusted_file import UntrustedFile, open_untrusted
from gate.codec.strict_json import parse_json
from gate.codec.untrusted_text import safe_line
from gate.errors import AttestationError, DocumentError, EvidenceError, StorageError
from gate.records.observed.state_roots import STATE_MEMBER

if TYPE_CHECKING:
    from gate.ports import Files

MAX_BYTES: Final = 2**40
# in the evidence a leaf has this before its name in the state file
CAPTURED: Final = "state"
MAX_RUN_BYTES: Final = 64 * 1024 * 1024
PACKAGE_FORMAT: Final = "package of repro-gate"
PACKAGE_NOTE: Final = (
    "the state that the gate captured, taken from a package whose seal was not checked "
    "(`repro-gate verify` does that)"
)


@contextmanager
def open_saved_state(files: Files, path: Path, unknown: UnknownContent) -> Iterator[StateContent]:
    """The leaves of a saved state, or of the state inside a package of the gate.

    `unknown` says what happens to files whose content is not understood.
    Raises `EvidenceError` saying what is wrong with it.
    """
    shown = safe_line(str(path))
    if _is_package(files, path):
        with open_untrusted(files, path, shown, max_bytes=MAX_BYTES) as opened:
            yield _state_in_package(opened)
        return
    with open_state(files, path, shown, max_bytes=MAX_BYTES, unknown=unknown) as content:
        yield content


def _is_package(files: Files, path: Path) -> bool:
    try:
        with files.open_binary(path, max_bytes=MAX_BYTES) as stream:
            return looks_like_package(stream.read(BLOCK_BYTES))
    except StorageError:
        # a folder, or nothing that can be read: opening it as a state says which
        return False


def _state_in_package(opened: UntrustedFile) -> StateContent:
    try:
        places = {
            name: (start, size_bytes)
            for name, start, size_bytes in member_index(opened.read_at, opened.size_bytes)
        }
    except AttestationError as error:
        raise EvidenceError(f"{opened.shown}: {error.message}", hint=error.hint) from error
    if STATE_MEMBER not in places:
        raise EvidenceError(
            f"{opened.shown}: holds no {STATE_MEMBER}",
            hint="The gate packs the state of a run that trained to its end; name a checkpoint.",
        )
    start, size_bytes = places[STATE_MEMBER]
    # read in its place: a state of many gigabytes is not unpacked to look at it
    part = file_part(opened, start, size_bytes, f"{opened.shown}: {STATE_MEMBER}")
    # the harness's names are paths already
    content = read_safetensors(part, "/{}".format)
    return replace(
        content,
        shown=opened.shown,
        format=PACKAGE_FORMAT,
        notes=(PACKAGE_NOTE,),
        parameter_names=_parameter_names(opened, places.get(RUN_MEMBER), content),
    )


def _parameter_names(
    opened: UntrustedFile, place: tuple[int, int] | None, content: StateContent
) -> dict[str, str]:
    """What the run's evidence calls the parameters; nothing where it is missing or not readable.

    Only a leaf of this very state is a name, so no other text of the package is shown.
    """
    # names help a reader and decide nothing: a state without them is compared all the same
    if place is None or place[1] > MAX_RUN_BYTES:
        return {}
    try:
        document = parse_json(opened.read_at(*place), RUN_MEMBER, max_bytes=MAX_RUN_BYTES)
    except DocumentError:
        return {}
    told = document.get("parameter_names") if isinstance(document, dict) else None
    leaves = {leaf.path for leaf in content.leaves}
    named = (
        (place.removeprefix(CAPTURED), leaf.removeprefix(CAPTURED))
        for place, leaf in (told.items() if isinstance(told, dict) else ())
        if isinstance(leaf, str)
    )
    return {place: leaf for place, leaf in named if leaf in leaves}
