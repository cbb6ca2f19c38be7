"""The base commit's requirements, for the step that installs packages before the gate starts.

    python -I -m gate.action.base_requirements requirements.lock

writes the file's bytes to standard output: nothing where the event has no base commit, or the base
no such file. They are read from the commit, as everything is that decides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gate.adapters.files.files import LocalFiles
from gate.adapters.git.repository import GitRepository
from gate.codec.untrusted_text import safe_block
from gate.errors import GateError
from gate.settings.event import MAX_EVENT_BYTES, read_context, read_inputs


def base_requirements(name: str, variables: Mapping[str, str]) -> bytes:
    """The base commit's version of a file that is named relative to the workspace.

    Raises `GateError` for an event that cannot be read, and a commit that the clone does not have.
    """
    path = variables.get("GITHUB_EVENT_PATH", "")
    event = LocalFiles().read_bytes(Path(path), max_bytes=MAX_EVENT_BYTES) if path else b"{}"
    context = read_context(variables, event, read_inputs(variables).mode)
    if context.trusted_base is None:
        return b""
    repository = GitRepository(context.workspace)
    return repository.read_file(repository.resolve(context.trusted_base), name) or b""


def main() -> None:
    """Write them, or say why not and end with the fault's exit code."""
    try:
        sys.stdout.buffer.write(base_requirements(sys.argv[1], os.environ))
    except GateError as fault:
        sys.stderr.write(f"{safe_block(fault.message)}\n")
        raise SystemExit(int(fault.exit_code)) from fault


if __name__ == "__main__":
    main()
