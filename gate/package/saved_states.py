"""Read the training states inside a package in place, without unpacking them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import ArchivedFolder, open_state, read_state
from gate.checkpoint.formats.safetensors_reader import as_path, read_safetensors
from gate.checkpoint.leaves import StateContent
from gate.checkpoint.parts import DEFAULT_EXCLUSIONS, Exclusion
from gate.checkpoint.untrusted_files import UntrustedFile, file_part
from gate.errors import DocumentError, EvidenceError, SettingsError
from gate.package.open_members import MAX_BYTES, is_package, open_members
from gate.package.ustar import RUN_MEMBER
from gate.text.package_names import MODEL_FOLDER, STATE_MEMBER
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import safe_line

if TYPE_CHECKING:
    from gate.settings.gate_settings import GateSettings
    from gate.system.files.port import Files


# prefix that a leaf's name has in the evidence, but not in the state file
CAPTURED: Final = "state"
MAX_RUN_BYTES: Final = 64 * 1024 * 1024
MAX_SETTINGS_BYTES: Final = 256 * 1024
SETTINGS_MEMBER: Final = "repro-gate.yml"
PACKAGE_FORMAT: Final = "package of repro-gate"
SAVED_FORMAT: Final = "package of repro-gate, {member}: {format}"
PACKAGE_NOTE: Final = (
    "the state that the gate captured, taken from a package whose seal was not checked "
    "(`repro-gate verify` does that)"
)
SAVED_NOTE: Final = (
    "what the script saved itself, taken from a package whose seal was not checked "
    "(`repro-gate verify` does that)"
)


@dataclass(frozen=True)
class PackagedStates:
    """An open package; `places` maps each file's name to its start and size in bytes."""

    opened: UntrustedFile
    places: Mapping[str, tuple[int, int]]

    def captured(self) -> StateContent:
        """Return what the harness captured on rank 0.

        Raises `EvidenceError` if the package does not contain it.
        """
        opened = self.opened
        if STATE_MEMBER not in self.places:
            raise EvidenceError(
                f"{opened.shown}: holds no {STATE_MEMBER}",
                hint="The gate packs the state of a run that trained to its end; name a "
                "checkpoint.",
            )
        start, size_bytes = self.places[STATE_MEMBER]
        # Read in place: a state may have many gigabytes, too many to unpack for a look.
        part = file_part(opened, start, size_bytes, f"{opened.shown}: {STATE_MEMBER}")
        # the harness names its tensors by paths already
        content = read_safetensors(part, as_path)
        return replace(
            content,
            shown=opened.shown,
            format=PACKAGE_FORMAT,
            notes=(PACKAGE_NOTE,),
            parameter_names=_parameter_names(opened, self.places.get(RUN_MEMBER), content),
        )

    @cached_property
    def saved_member(self) -> str:
        """The member that the script saved, a file or a folder; empty if the package has none."""
        names = [name for name in self.places if name.startswith(f"{MODEL_FOLDER}/")]
        if not names:
            return ""
        # A single member with the checkpoint's own name is a file; anything else was a folder.
        checkpoint = self._settings().train.checkpoint or ""
        single = f"{MODEL_FOLDER}/{checkpoint.rpartition('/')[2]}"
        return single if names == [single] else MODEL_FOLDER

    def saved(self, member: str = "") -> StateContent:
        """Return what the script saved itself, at `member` if a seal names the place.

        Raises `EvidenceError` if it cannot be read.
        """
        member = member or self.saved_member
        shown = f"{self.opened.shown}: {member}"
        folder = ArchivedFolder(
            shown=shown, whole=self.opened, places=self.places, prefix=f"{MODEL_FOLDER}/"
        )
        if member == MODEL_FOLDER:
            content = read_state(folder, None, UnknownContent.BYTES)
        else:
            name = member.removeprefix(f"{MODEL_FOLDER}/")
            content = read_state(folder, name, UnknownContent.REFUSE)
        named = SAVED_FORMAT.format(member=member, format=content.format)
        return replace(content, format=named, notes=(SAVED_NOTE, *content.notes))

    def saved_exclusions(self) -> tuple[Exclusion, ...]:
        """Return the rules for leaves that the gate left out: the package's, then the defaults."""
        own = self._settings().train.checkpoint_exclude
        rules = (Exclusion(pattern=rule.pattern, reason=rule.reason) for rule in own)
        return (*rules, *DEFAULT_EXCLUSIONS)

    def _settings(self) -> GateSettings:
        # Imported late: pydantic and the settings are slow, and digesting a file needs neither.
        from gate.settings.load import parse_settings  # noqa: PLC0415

        start, size_bytes = self.places.get(SETTINGS_MEMBER, (0, 0))
        if not 0 < size_bytes <= MAX_SETTINGS_BYTES:
            raise self.opened.fault(f"holds no readable {SETTINGS_MEMBER}")
        try:
            return parse_settings(self.opened.read_at(start, size_bytes), SETTINGS_MEMBER)
        except SettingsError as error:
            raise EvidenceError(
                f"{self.opened.shown}: {error.message}", hint=error.hint, details=error.details
            ) from error


@contextmanager
def open_package(files: Files, path: Path) -> Iterator[PackagedStates]:
    """Open a package's states while the body runs; raises the errors of `open_members`."""
    with open_members(files, path) as (opened, places):
        yield PackagedStates(opened, places)


def _parameter_names(
    opened: UntrustedFile, place: tuple[int, int] | None, content: StateContent
) -> dict[str, str]:
    """Map places in the state to parameter names, as the run's evidence has them.

    Returns an empty map if the evidence is missing or unreadable. The evidence is untrusted, so a
    name counts only if it is a leaf of this state: no other text of the package is shown.
    """
    # The names only help a reader, so a state without them is compared all the same.
    if place is None or place[1] > MAX_RUN_BYTES:
        return {}
    try:
        document = parse_json(opened.read_at(*place), RUN_MEMBER, max_bytes=MAX_RUN_BYTES)
    except DocumentError:
        return {}
    names = document.get("parameter_names") if isinstance(document, dict) else None
    leaves = {leaf.path for leaf in content.leaves}
    named = (
        (place.removeprefix(CAPTURED), leaf.removeprefix(CAPTURED))
        for place, leaf in (names.items() if isinstance(names, dict) else ())
        if isinstance(leaf, str)
    )
    return {place: leaf for place, leaf in named if leaf in leaves}


@contextmanager
def open_saved_state(files: Files, path: Path, unknown: UnknownContent) -> Iterator[StateContent]:
    """Open the leaves of a saved state, or of the captured state inside a package of the gate.

    `unknown` says what happens to files whose content is not understood. Raises `EvidenceError`
    with the reason if the state cannot be read.
    """
    if is_package(files, path):
        with open_package(files, path) as package:
            yield package.captured()
        return
    shown = safe_line(str(path))
    with open_state(files, path, shown, max_bytes=MAX_BYTES, unknown=unknown) as content:
        yield content
