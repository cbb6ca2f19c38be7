"""The output folder of a call, made ready before anything is written there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gate.errors import SettingsError, StorageError
from gate.system.files.port import Files

IGNORE_NAME: Final = ".gitignore"
IGNORE_ALL: Final = b"*\n"
# git's own file alone is no mark: tools of others write the same one into folders of theirs
MARK_NAME: Final = ".repro-gate-out"
MARK: Final = b"The gate made this folder; its next call replaces what is in it.\n"
# of a folder that a version before the mark made
OLDER_MARK: Final = Path("evidence", "manifest.json")
MAX_MARK_BYTES: Final = 64 * 1024
# what one command or another removes or replaces there
OUTPUT_NAMES: Final = (
    *("evidence", "work", "doctor", "source", "source.pack", "verdict.json", "package.tar"),
    *("comment.md", "summary.md", "report.html", "badge.json", "proposed-baseline.json"),
    *("compare.json", "compare.html", "operators.json"),
    *(
        f"{verb}.{end}"
        for verb in ("cost", "noise", "shake", "calibration")
        for end in ("json", "md")
    ),
)


def claim_out(out: Path, files: Files) -> None:
    """Make the output folder, invisible to git, and mark it as the gate's.

    Raises `SettingsError` where something would be replaced or removed that the gate did not write,
    and `StorageError` where a link of the checkout leads there.
    """
    if files.exists(out / ".git"):
        raise SettingsError(
            f"--out {out}: is a repository", hint="Name a separate folder, for example demo-out."
        )
    refuse_unmarked(out, files)
    if not files.exists(out):
        files.fresh_folder(out)
    # or the output would be an uncommitted change of the next call
    files.write_bytes(out / IGNORE_NAME, IGNORE_ALL)
    files.write_bytes(out / MARK_NAME, MARK)


def refuse_unmarked(out: Path, files: Files) -> None:
    """`SettingsError` for a folder with something in it that looks like the gate's and is not."""
    files.refuse_brought_link(out)
    if _is_own(out, files):
        return
    taken = [name for name in OUTPUT_NAMES if files.exists(out / name)]
    if files.exists(out / IGNORE_NAME) and not _holds(out / IGNORE_NAME, IGNORE_ALL, files):
        taken.append(IGNORE_NAME)
    if taken:
        raise SettingsError(
            f"--out {out}: contains {taken[0]}, and the gate did not make this folder",
            hint="Name a new folder, for example demo-out: a call replaces what is in it.",
        )


def prepare_out(out: Path, files: Files) -> None:
    """Claim the output folder, and remove the evidence that an earlier call left there."""
    claim_out(out, files)
    files.fresh_folder(out / "evidence")


def _is_own(out: Path, files: Files) -> bool:
    if not _holds(out / IGNORE_NAME, IGNORE_ALL, files):
        return False
    return _holds(out / MARK_NAME, MARK, files) or files.exists(out / OLDER_MARK)


def _holds(path: Path, content: bytes, files: Files) -> bool:
    try:
        return files.read_bytes(path, max_bytes=MAX_MARK_BYTES) == content
    except StorageError:
        return False
