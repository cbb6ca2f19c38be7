"""What must be true after any attempt, whatever it tried; each fault is a sentence."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from arena import CANARIES, MAY_SEE, OWNER, Arena
from attempt import ACCOUNT, GOT, REFUSED, Attempt
from harmless import log_faults, markdown_faults, page_faults

from gate.errors import ExitCode
from gate.isolation.account_choice import ACCOUNTS
from gate.isolation.accounts import acquire_uid, release_uid
from gate.isolation.modes import IsolationMode
from gate.verdict.verdict import Outcome

RUNS = 4
# more of them, where two runs differ
TRACED_RUNS = 2
# and of those that try a setting each, as many as the time allows; the gate's own line at its start
TRIED_RUN = re.compile(r"^tried-\S+: training, strict mode \.\.\.$", re.MULTILINE)
LAST_DEFAULT_RUN = "default-2: training, default mode ..."
SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - looked into
PLANTED = (Path("/etc/repro-gate-planted"),)
# whatever a run names: a line of Python that the commit holds, or none
ANNOTATED = re.compile(r"^::\w+ file=([^,]*),line=(\d+),", re.MULTILINE)
MAX_LOG_BYTES = 8 * 1024 * 1024
WRITTEN_BY_THE_GATE = {"file_commands/output", "file_commands/state", "file_commands/summary"}


def faults(arena: Arena, attempt: Attempt, tells: int) -> list[str]:
    """All that is wrong after an attempt that should print `tells` lines in each run."""
    checks = (_verdict, _secrets, _programs, _places, _statuses, _processes, _texts)
    found = [fault for check in checks for fault in check(arena, attempt)]
    return [*found, *_told(arena, attempt, tells)]


def told_lines(log: str, word: str) -> list[str]:
    """The lines of a log in which a script says how its attempt went."""
    return [line for line in log.splitlines() if word in line]


def _told(arena: Arena, attempt: Attempt, tells: int) -> Iterator[str]:
    yield from told_lines(arena.log, GOT)
    runs = RUNS if attempt.exit_code not in {ExitCode.ERROR, ExitCode.USAGE} else 1
    runs = 0 if attempt.refused_before else runs
    if attempt.outcome is Outcome.NONDETERMINISTIC:
        runs += TRACED_RUNS + len(TRIED_RUN.findall(arena.log))
        # once two strict runs differ, a default run that was to follow is left out
        runs -= LAST_DEFAULT_RUN not in arena.log
    refused = len(told_lines(arena.log, REFUSED))
    if refused != tells * runs:
        yield f"{refused} refusals were told, not {tells * runs}"


def _verdict(arena: Arena, attempt: Attempt) -> Iterator[str]:
    if arena.exit_code != attempt.exit_code:
        yield f"exit code {arena.exit_code}, not {int(attempt.exit_code)}"
    if attempt.brought:
        if not re.search(attempt.cause, arena.log):
            yield "the log does not name it"
        return
    path = arena.out / "verdict.json"
    if attempt.refused_before:
        # what was refused before the gate began is said in the log and the comment
        told = arena.log if arena.mode is IsolationMode.NONE else "".join(arena.comments)
        if path.exists() or not re.search(attempt.cause, told):
            yield f"the comment does not name it: {arena.log[-2000:]}"
        return
    if not path.exists():
        yield "there is no verdict"
        return
    verdict = json.loads(path.read_text("utf-8"))
    if verdict["outcome"] != attempt.outcome.value:
        yield f"outcome {verdict['outcome']}: {verdict['cause']}"
    said = "\n".join((verdict["cause"], *verdict.get("fault_details", ())))
    if not re.search(attempt.cause, said):
        yield f"the cause does not name it: {said}"
    sealed = (arena.out / "package.dsse.json").exists()
    if sealed != (attempt.exit_code is ExitCode.PASS):
        yield f"sealed: {sealed}"


def _secrets(arena: Arena, _: Attempt) -> Iterator[str]:
    """Canaries in anything that leaves the gate."""
    outputs = {"the log": arena.log.encode(), "the comment": "".join(arena.comments).encode()}
    outputs |= {str(path): path.read_bytes() for path in arena.written if path.is_file()}
    outputs |= {name: (arena.root / name).read_bytes() for name in WRITTEN_BY_THE_GATE}
    for name, data in outputs.items():
        if any(canary in data for canary in CANARIES):
            yield f"a secret stands in {name}"


def _programs(arena: Arena, attempt: Attempt) -> Iterator[str]:
    """What a program of the machine was handed, beside what it may be."""
    for name in attempt.programs:
        if not arena.seen(name).exists():
            yield f"{name} was not started"
            continue
        handed = arena.seen(name).read_bytes()
        for known in MAY_SEE[name]:
            handed = handed.replace(known, b"")
        if any(canary in handed for canary in CANARIES):
            yield f"{name} was handed a secret: {handed[:3000]!a}"


def _places(arena: Arena, _: Attempt) -> Iterator[str]:
    after = arena.state()
    for name in sorted(arena.before.keys() | after.keys()):
        before, now = arena.before.get(name), after.get(name)
        written = name in WRITTEN_BY_THE_GATE and before and now and before[:2] == now[:2]
        if before != now and not written:
            yield f"{name} is not as it was"
    if (arena.out / "work").exists():
        yield "copies of the code are left"
    if any(path.exists() for path in PLANTED):
        yield "a folder was made among the system's files"
    if arena.out.is_symlink() or not arena.out.exists():
        # refused before anything was written
        return
    owners = {path.lstat().st_uid for path in (arena.out, *arena.written)}
    if arena.mode is not IsolationMode.NONE and owners != {OWNER}:
        yield f"the output belongs to {owners}"
    if any(path.is_symlink() or stat.S_ISFIFO(path.lstat().st_mode) for path in arena.written):
        yield "a link or a pipe lies in the output"


def _statuses(arena: Arena, attempt: Attempt) -> Iterator[str]:
    """A status answers for the commit and the branch that it names."""
    if arena.mode is IsolationMode.NONE:
        return
    word = "success" if attempt.exit_code is ExitCode.PASS else "failure"
    wanted = {"repro-gate (into main)": "error" if attempt.exit_code > ExitCode.FAIL else word}
    wanted |= {"repro-gate (into loose)": "success"} if attempt.two_bases else {}
    found = {one["context"]: one["state"] for one in arena.statuses}
    if found != wanted:
        yield f"the statuses are {found}"


def _processes(arena: Arena, _: Attempt) -> Iterator[str]:
    mark = str(arena.root).encode()
    with ExitStack() as ends:
        uids = set(_accounts(arena, ends))
        yield from _left(arena, mark, uids)


def _left(arena: Arena, mark: bytes, uids: set[int]) -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, owner = (folder / "cmdline").read_bytes(), folder.stat().st_uid
        except OSError:
            continue
        if mark in words or owner in uids:
            yield f"process {folder.name} lives on: {words[:100]!a}"
    for place in SHARED:
        for path in Path(place).iterdir():
            # one of another test's may go meanwhile
            with suppress(FileNotFoundError):
                if not path.is_relative_to(arena.root) and path.lstat().st_uid in uids:
                    yield f"{path} is left"


def _accounts(arena: Arena, ends: ExitStack) -> Iterator[int]:
    """The accounts that the training had, as it says itself, held: they are nobody else's now."""
    for line in told_lines(arena.log, ACCOUNT):
        uid = int(line.split()[-1])
        if uid in ACCOUNTS and acquire_uid(uid):
            ends.callback(release_uid, uid)
            yield uid


def _texts(arena: Arena, _: Attempt) -> Iterator[str]:
    if len(arena.log) > MAX_LOG_BYTES:
        yield f"the log has {len(arena.log):,} characters"
    if arena.mode is IsolationMode.NONE:
        return
    yield from (f"the log holds {fault!a}" for fault in log_faults(arena.log.splitlines()))
    for file, line in ANNOTATED.findall(arena.log):
        path = arena.work / file
        if path.suffix != ".py" or int(line) > len(path.read_text("utf-8").splitlines()):
            yield f"an annotation points at {file}:{line}"
    if len(arena.comments) != 1:
        yield f"{len(arena.comments)} comments"
    summary = (arena.root / "file_commands/summary").read_text()
    for text in (*arena.comments, summary):
        yield from (f"comment or summary holds {fault!a}" for fault in markdown_faults(text))
    page = (arena.out / "report.html").read_text() if (arena.out / "report.html").exists() else ""
    yield from (f"the page holds {fault!a}" for fault in page_faults(page))
