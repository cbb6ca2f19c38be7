"""The output folder of a call, made ready before anything is written there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gate.errors import SettingsError
from gate.ports import Files

# also how a later call knows a folder of the gate
IGNORE_NAME: Final = ".gitignore"
IGNORE_ALL: Final = b"*\n"


def prepare_out(out: Path, files: Files) -> None:
    """Make the output folder, invisible to git, with what an earlier call left there removed."""
    # what lies in the folder is replaced and removed: a repository was named by mistake
    if files.exists(out / ".git"):
        raise SettingsError(
            f"--out {out}: is a repository", hint="Name a separate folder, for example demo-out."
        )
    if not files.exists(out):
        files.fresh_folder(out)
    # or the output would be an uncommitted change of the next call
    files.write_bytes(out / IGNORE_NAME, IGNORE_ALL)
    files.fresh_folder(out / "evidence")
