"""Whether a second run can go beside a first one, found out by trying."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from gate.errors import RunError
from gate.isolation.account_choice import unused_account
from gate.isolation.accounts import release_uid
from gate.isolation.modes import Credentials, Isolation, Separation, WriteGuard
from gate.isolation.process_ports import Processes
from gate.isolation.process_request import Place, ProcessRequest
from gate.system.files import writing
from gate.text.untrusted_text import safe_line

TRIAL_SECONDS = 20.0
TRIAL_OUTPUT_BYTES = 4096
SHOWN = b"shown"
READS = "import sys; sys.stdout.write(open(sys.argv[1]).read())"
HINT = "The runs go one after the other, with the same result."


def accounts_beside(
    isolation: Isolation, processes: Processes, interpreter: str, number: int
) -> tuple[Credentials | None, ...]:
    """So many accounts for runs that go beside one of this isolation; None where it has none.

    Fewer where others have them. This process holds them from now on, see `release_uid`. Raises
    `RunError` with the reason where two runs could reach each other, or would not see the same
    paths.
    """
    if isolation.in_container:
        _refuse_shared(isolation)
        # each container has accounts, processes and folders of its own
        return (isolation.credentials,) * number
    if not isolation.own_accounts:
        if os.geteuid() != 0:
            raise RunError("only root can show two runs the same paths", hint=HINT)
        _try(None, processes, interpreter)
        return (None,) * number
    if isolation.guard is not WriteGuard.MOUNT_NAMESPACE:
        raise RunError("without a mount namespace two runs have other paths", hint=HINT)
    if isolation.network:
        raise RunError("with a network (isolation.network) two runs could talk", hint=HINT)
    _refuse_shared(isolation)
    (own,) = isolation.own_accounts
    found = [account for _ in range(number) if (account := unused_account()) is not None]
    others = tuple(replace(own, uid=account.uid, gid=account.gid) for account in found)
    if not others:
        raise RunError("every account for trainings is in use", hint=HINT)
    try:
        # what one may, each may
        _try(others[0], processes, interpreter)
    except BaseException:
        for account in others:
            release_uid(account.uid)
        raise
    return others


def _refuse_shared(isolation: Isolation) -> None:
    """By what two runs share they could agree on a number while both live."""
    shared = [
        one.value
        for one in Separation
        if one not in isolation.own
        # a cache that goes at the end is none between two that live
        and one is not Separation.CACHE
        and (one is not Separation.NETWORK or not isolation.network)
    ]
    if shared:
        why = f" ({isolation.shares})" if isolation.shares else ""
        raise RunError(f"two runs would share {', '.join(shared)}{why}", hint=HINT)


def _try(account: Credentials | None, processes: Processes, interpreter: str) -> None:
    """A file in one folder, read at the path of another; raises `RunError` where it cannot be."""
    with tempfile.TemporaryDirectory(prefix="repro-gate-trial-") as folder:
        source, target = (Path(folder) / name for name in ("source", "target"))
        for path in (source, target):
            writing.new_folder(path)
        writing.write_whole(source / "word", SHOWN)
        writing.set_mode(Path(folder), 0o755)
        request = ProcessRequest(
            argv=(interpreter, "-I", "-S", "-c", READS, str(target / "word")),
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            workdir=Path("/"),
            timeout_seconds=TRIAL_SECONDS,
            output_limit_bytes=TRIAL_OUTPUT_BYTES,
            credentials=account,
            writable=(target,),
            place=Place(source=source, target=target),
        )
        result = processes.run(request, lambda _: None)
    if result.exit_code != 0 or result.output != SHOWN:
        last = (result.output.strip().splitlines() or [b"no answer"])[-1]
        raise RunError(f"a run cannot be shown another folder: {safe_line(last)}", hint=HINT)
