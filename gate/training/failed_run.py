"""Why a run failed, by its output, its ranks and its exit code, and what the user can do."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from gate.errors import RunError, RunTimeoutError
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.text.untrusted_text import last_lines
from gate.training.runs import PlannedRun, RankEnd, RunEnd, ended_with

PREPROCESS_LIMIT = "preprocess.timeout_seconds"
RANK_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "mpirun"}
# what torch 2.13 prints, for gloo and for its store, where only local sockets can be created
RANK_SIGNS = (b"DistNetworkError", b"torch/distributed/", b"Cannot resolve 127.0.0.1 to a (local)")
CONNECTION_SIGNS = (
    b"name resolution",
    b"Name or service not known",
    b"<urlopen error",
    b"NewConnectionError",
    b"ConnectError",
)
MEMORY_SIGNS = (
    *(b"out of memory", b"OutOfMemoryError", b"MemoryError", b"Cannot allocate memory"),
    *(b"CUBLAS_STATUS_ALLOC_FAILED", b"shared memory segment /dev/shm"),
)
# a fixed port, which two runs on one network cannot both use
PORT_SIGNS = (b"EADDRINUSE", b"Address already in use")
# as Python prints them, before a path
WRITING_SIGNS = (b"Read-only file system: '", b"Permission denied: '")
# ranks and Ray's workers print their name before each line
TELLER = r"(?:\[rank\d{1,6}\]: |\([^()\n]{1,80}\) )?"
FRAME = re.compile(
    TELLER + r'\s+File "(?P<file>[^"\n]{1,200})", line (?P<line>[1-9]\d{0,6})(?!\d)', re.ASCII
)
EXCEPTION = re.compile(
    TELLER + r"(?P<told>(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Stopped))"
    r"\b(?:\([\w.]{1,80}\))?(?:: .*)?)\Z"
)
# exceptions of launchers, which only report that the script failed, and warnings
OF_NO_SCRIPT = re.compile(
    r"(?:.*\.)?(?:CalledProcessError|ChildFailedError|ProcessRaisedException|RayTaskError"
    r"|ProcessExitedException|TrainingFailedError|WorkerCrashedError|ActorDiedError"
    r"|WorkerGroupError|ControllerError|UncompletedJobError|FailedJobError|BrokenProcessPool"
    r"|TrainingStopped|\w*Warning)\Z"
)
STOP_SIGNS = (b"TrainingStopped", b"ray.", b"submitit.", b"joblib.", b"BrokenProcessPool")
# enough lines to reach past a launcher's traceback, which follows the script's
LOOKED_LINES = 200
SHOWN_RANKS = 8
# what torch prints when a rank waited in vain: gloo, the store, NCCL, a monitored barrier
LATE_SIGNS = (
    *(b"Timed out waiting", b"Socket Timeout", b"client socket has timed out"),
    *(b"wait timeout after", b"collective operation timeout", b"failed to pass monitoredBarrier"),
)
LATE_HINT = (
    "A rank came too late to a collective: look for work that one rank does alone (a download, "
    "preprocessing, an evaluation), and let the others wait at a barrier with a longer timeout."
)
NEAR_LINES = 40
BEGINS = re.compile(TELLER + r"Traceback \(most recent call last\)")
SIGNAL_HINTS = {
    -signal.SIGBUS: "Often too little shared memory for DataLoader workers: raise the container's "
    "--shm-size, or use num_workers=0 for the smoke training.",
    -signal.SIGKILL: "Killed by SIGKILL, most often for lack of memory: check the machine's "
    "kernel log.",
    -signal.SIGSYS: "It made a system call of another architecture, as a 32-bit program does: "
    "the seccomp filter refuses those.",
    -signal.SIGXFSZ: "It wrote a file larger than the isolation allows (64 GiB).",
}
MORE_SHARED_MEMORY = "Give the container a larger /dev/shm (--shm-size, isolation.shm_bytes)"
NO_COMPILER = (
    "torch.compile and Triton need a compiler where the training runs, and there is none. The "
    "action's full image has one; install gcc, g++ and libc6-dev in your own image."
)
BUSY_GPU = (
    "Another process has the GPU to itself: its compute mode is exclusive, or MPS serves another "
    "account. `repro-gate doctor` says which; run one job at a time, or set the mode to default "
    "(nvidia-smi -c DEFAULT)."
)
OUTPUT_HINTS = {
    b"does not have a deterministic implementation": "An operator has no deterministic form. "
    "Replace it, or compute that part on the CPU; the line above names it.",
    b"EOFError: EOF when reading a line": "The training waits for input on stdin and gets none: "
    "pass the answers as arguments.",
    b"shared memory segment /dev/shm/nccl": "NCCL found no space in /dev/shm. "
    f"{MORE_SHARED_MEMORY}, or fewer ranks to the smoke training.",
    b"pidfd_getfd": "With expandable segments a GPU tensor cannot be shared with another "
    "process: the isolation does not let a process take another's file descriptors. Remove "
    "expandable_segments from PYTORCH_ALLOC_CONF for the smoke training.",
    b"In the deterministic mode of Inductor": "Inductor tried to choose a kernel by timing, "
    "which strict mode refuses. Compile without max-autotune in the smoke training, or set "
    "determinism.knobs.inductor_deterministic to keep, which leaves that knob off.",
    b"Failed to find C compiler": NO_COMPILER,
    b"No working C++ compiler found": NO_COMPILER,
    b"devices are busy or unavailable": BUSY_GPU,
    b"device(s) is/are busy or unavailable": BUSY_GPU,
    b"AF_UNIX path": "The path of a Unix socket is too long for the kernel (107 bytes): set TMPDIR "
    "to /tmp in train.env, or give a shorter --out.",
    **dict.fromkeys(
        PORT_SIGNS,
        "That port is taken on this machine, often by a job beside this one: let the launcher "
        "choose a free one (torchrun --standalone), or set MASTER_PORT in train.env if the script "
        "starts its ranks itself, and end what an earlier job left.",
    ),
    b"No module named": "The training's environment lacks a package: run the gate from the "
    "training's environment, or name its interpreter in train.command.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """What to do about a failed run: its `known` cause, or to run it by hand in `workdir`."""

    known: str
    workdir: str

    @property
    def by_hand(self) -> str:
        """The hint if nothing points at a cause."""
        place = "" if self.workdir == "." else f"{self.workdir} of "
        return (
            f"Run the same command by hand in {place}a clean checkout; the details show its last "
            "lines."
        )


STOPPED: Final = "the gate stopped every rank after train.max_steps steps, and then "
BY_ITSELF: Final = (
    "Let the script end by itself: pass it the number of steps in train.max_steps, so that nothing "
    "has to stop it."
)


def refuse_failed_run(
    planned: PlannedRun,
    result: ProcessResult,
    request: ProcessRequest,
    hints: Hints,
    end: RunEnd,
) -> None:
    """Raise `RunError` with the likely cause for a failed run, `RunTimeoutError` after a time-out.

    Returns if the run ended with exit code 0.
    """
    label = planned.label
    if result.timed_out:
        raise _timeout(planned, result, request, end)
    if result.exit_code != 0:
        lines, exception = _last_words(result.output)
        # a launcher's exception says only that some rank failed, so the ranks' own exceptions are
        # better
        of_no_script = not exception or OF_NO_SCRIPT.match(exception.partition(":")[0])
        if end.stopped and not end.failed and of_no_script:
            raised = f": {exception}" if exception else ""
            raise RunError(
                f"run {label}: {STOPPED}the command {_how_it_ended(result)}{raised}",
                hint=BY_ITSELF,
                details=lines,
            )
        file, line = raised_at(lines, request.workdir)
        where = f" ({file}, line {line})" if file else ""
        own = "" if of_no_script and end.failed else exception
        late = _late(end.ranks, result.output)
        raised = f": {own or ' and '.join(end.failed)}" if own or end.failed else ""
        if end.several:
            # a script may well raise for what a process that was stopped owes it
            raise RunError(
                f"run {label}: {end.several}, and the gate stops such a run; the command "
                f"{_how_it_ended(result)}{raised}{where}",
                hint=end.several_hint,
                details=lines,
            )
        raise RunError(
            f"run {label}: {' '.join(request.argv)[:200]} {_how_it_ended(result)}"
            f"{_rank_words(end.ranks, late=late)}{raised}{where}",
            hint=hints.known
            or (LATE_HINT if late else _failure_hint(result, request) or hints.by_hand),
            details=(*_rank_lines(end.ranks), *lines),
            file=file,
            line=line,
        )


def _timeout(
    planned: PlannedRun, result: ProcessResult, request: ProcessRequest, end: RunEnd
) -> RunTimeoutError:
    """The fault of a run that timed out, with the limit that it met."""
    label = planned.label
    bound = planned.window is not None and planned.window.max_seconds
    own = "train.timeout_seconds"
    if bound == request.timeout_seconds:
        own = "diagnosis.budget_seconds"
    if request.step is not None and request.step.settings.run_seconds == request.timeout_seconds:
        own = "cluster.run_seconds"
    if planned.varied is not None and planned.varied.max_seconds == request.timeout_seconds:
        own = "far longer than a run in which nothing is varied"
    hint = "Lower train.max_steps or raise train.timeout_seconds."
    if own == "cluster.run_seconds":
        hint = f"Lower train.max_steps or raise {own}."
    if planned.preprocesses:
        own, hint = PREPROCESS_LIMIT, f"Prepare less data, or raise {PREPROCESS_LIMIT}."
    if end.stopped and not end.failed:
        # such as a process that waits for what the one that trains would have sent it
        return RunTimeoutError(
            f"run {label}: {STOPPED}the command went on until it timed out after "
            f"{request.timeout_seconds:g} s ({own})",
            hint=BY_ITSELF,
            details=last_lines(result.output),
        )
    return RunTimeoutError(
        f"run {label}: timed out after {request.timeout_seconds:g} s ({own})"
        f"{_ranks_behind(end.ranks)}",
        hint=hint,
        details=(*_rank_lines(end.ranks), *last_lines(result.output)),
    )


def _late(ranks: Sequence[RankEnd], output: bytes) -> bool:
    """Return whether a rank gave up waiting while another one still ran."""
    timed_out = any(sign in output for sign in LATE_SIGNS)
    waited = any(end.failed for end in ranks)
    return timed_out and waited and any(_blame(end) is Blame.NO_FAULT for end in ranks)


def _rank_words(ranks: Sequence[RankEnd], *, late: bool) -> str:
    """Return the rank that best explains the failure, in the order of `Blame`; empty if none does.

    A killed rank comes before one that raised, because a rank that loses its peer raises too. If
    ranks were `late`, it is the rank that the others waited for. What led to its end stays open.
    """
    ordered = sorted(ranks, key=_blame)
    first = _blame(ordered[0]) if ordered else Blame.NO_FAULT
    behind = [end for end in ordered if _blame(end) is Blame.NO_FAULT]
    if late and behind and first is Blame.RAISED:
        return f" ({behind[0].described}; others timed out waiting)"
    return "" if first is Blame.NO_FAULT else f" ({ordered[0].described})"


class Blame(IntEnum):
    """How well a rank's end explains a failure, best first."""

    KILLED = 0
    NEVER_THERE = 1
    RAISED = 2
    NO_FAULT = 3


def _blame(end: RankEnd) -> Blame:
    if end.exit_code not in {None, 0, -signal.SIGTERM} and not end.failed:
        return Blame.KILLED
    if not (end.last_step or end.failed or end.told_its_end or end.node):
        return Blame.NEVER_THERE
    return Blame.RAISED if end.failed else Blame.NO_FAULT


def _ranks_behind(ranks: Sequence[RankEnd]) -> str:
    """Return the rank with the fewest steps of a run that timed out, if others took more."""
    behind = min(ranks, key=lambda end: end.last_step, default=None)
    if behind is None or all(end.last_step == behind.last_step for end in ranks):
        return ""
    return f"; {behind.described}"


def _rank_lines(ranks: Sequence[RankEnd]) -> tuple[str, ...]:
    """Return a line for each rank, those that explain the failure best first."""
    return tuple(end.described for end in sorted(ranks, key=_blame)[:SHOWN_RANKS])


def _last_words(output: bytes) -> tuple[tuple[str, ...], str]:
    """Return the last lines of a training's output, and the exception that ended it, if any.

    If a launcher reports that its script failed, the result is the script's own exception, and the
    lines end with it. The launcher's traceback does not show the fault.
    """
    looked, shown = last_lines(output, LOOKED_LINES), last_lines(output)
    words = [
        (place, match) for place, line in enumerate(looked) if (match := EXCEPTION.match(line))
    ]
    begins = max((place for place, line in enumerate(looked) if BEGINS.match(line)), default=0)
    # an exception long before the launcher's traceback was caught, or is unrelated to the end
    near = [pair for pair in words if pair[0] >= begins - NEAR_LINES]
    own = [pair for pair in near if not OF_NO_SCRIPT.match(pair[1]["name"])]
    if not own or own[-1] == words[-1]:
        # only a launcher's exception, or none: what was printed long before is no reason
        late = [match for place, match in words if place >= len(looked) - len(shown)]
        return shown, late[-1]["told"] if late else ""
    place, match = own[-1]
    return looked[max(0, place + 1 - len(shown)) : place + 1], match["told"]


def raised_at(lines: tuple[str, ...], workdir: Path) -> tuple[str, int]:
    """Return file and line of the innermost frame below `workdir` in the last traceback.

    The file is relative. Without such a frame the answer is `("", 0)`. The training printed the
    text, so it is untrusted: show the place, and never open it as a path.
    """
    frames = [match for match in map(FRAME.match, lines) if match is not None]
    for frame in reversed(frames):
        # a script started by a relative name has that name in its own traceback
        file = frame["file"].removeprefix(f"{workdir}/")
        if not file.startswith(("/", "<")) and ".." not in file.split("/"):
            return file, int(frame["line"])
    return "", 0


def _how_it_ended(result: ProcessResult) -> str:
    exit_code = result.exit_code
    if result.out_of_memory:
        return "ran out of memory and was killed"
    return f"exited with {exit_code}" if exit_code >= 0 else f"was {ended_with(exit_code)}"


def _failure_hint(result: ProcessResult, request: ProcessRequest) -> str:
    """Return the hint for a common cause that the exit code or the output points at, or nothing."""
    if result.out_of_memory:
        return (
            "It needed more memory than isolation.memory_bytes or the machine has: raise the limit."
        )
    if request.under_own_account and not request.network:
        cut_off = _hint_without_network(result, request)
        if cut_off:
            return cut_off
    if result.exit_code in SIGNAL_HINTS:
        return SIGNAL_HINTS[result.exit_code]
    if request.under_own_account and any(sign in result.output for sign in WRITING_SIGNS):
        return (
            "The training's account writes only in the checkout that it trains in, in its home and "
            "in $TMPDIR (tempfile.gettempdir() names it): use one of these for what it writes, and "
            "give every account read access to what it reads."
        )
    return next((hint for sign, hint in OUTPUT_HINTS.items() if sign in result.output), "")


def _hint_without_network(result: ProcessResult, request: ProcessRequest) -> str:
    """Return the hint for a failure that comes from having no network.

    Ranks need loopback and downloads the network, and their errors mention neither.
    """
    launcher = {Path(word).name for word in request.argv[:1]} & RANK_LAUNCHERS
    ranks = launcher or any(sign in result.output for sign in RANK_SIGNS)
    if ranks and not request.in_container:
        return (
            "Ranks communicate over loopback sockets, which the isolation blocks. Set "
            "isolation.network: true; the verdict then says so."
        )
    if any(sign in result.output for sign in CONNECTION_SIGNS):
        return (
            "The isolation blocks network connections: put the data into the repository or the "
            "image, or set isolation.network: true; the verdict then says so."
        )
    return ""


def may_be_stopped(result: ProcessResult) -> bool:
    """Return whether, by its output, a command may have failed only because the gate stopped it.

    The ranks' own reports decide, and those are read only after all processes are gone.
    """
    return result.exit_code > 0 and any(sign in result.output for sign in STOP_SIGNS)


def short_of_room(result: ProcessResult) -> bool:
    """Return whether a run may have failed for lack of memory, of time or of a free port."""
    if result.timed_out or result.out_of_memory:
        return True
    signs = any(sign in result.output for sign in (*MEMORY_SIGNS, *PORT_SIGNS))
    return result.exit_code in {-signal.SIGKILL, -signal.SIGBUS} or (
        result.exit_code != 0 and signs
    )
