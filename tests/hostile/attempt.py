"""What an attempt is, and the words in which its script tells how it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gate.errors import ExitCode
from gate.isolation.modes import IsolationMode
from gate.verdict.verdict import Outcome

APART = (IsolationMode.UID, IsolationMode.CONTAINER)
EVERYWHERE = (IsolationMode.NONE, *APART)
MODES = EVERYWHERE
REFUSED = "ATTEMPT refused"
GOT = "ATTEMPT GOT"
ACCOUNT = "ACCOUNT"
TRY = " TRY "
# stands before every script; a script that raises would only fail its own training
PRELUDE = f"""
import ctypes, json, os, pathlib, signal, socket, struct, subprocess, sys, tempfile, time, zipfile
here = pathlib.Path(__file__).resolve().parent
out = pathlib.Path(os.environ["REPRO_GATE_OUT"])
home = pathlib.Path(os.environ["HOME"])
run = home.parent
work = run.parents[2]
root = work.parent
gate = int(os.environ.get("GATE_PROCESS", os.getppid()))
# in a container of its own that is the container's first process: the gate is nowhere
gate = 2**22 if gate == 1 else gate
libc = ctypes.CDLL(None, use_errno=True)
if "GATE_PROCESS" not in os.environ: print("{ACCOUNT}", os.getuid(), flush=True)
def told(got):
    print("{GOT} " + repr(got)[:200] if got else "{REFUSED}", flush=True)
def trying(action, *arguments):
    try: answer = action(*arguments)
    except (OSError, ValueError, KeyError, AttributeError): told(None)
    else: told((answer,))
def any_of(action, items):
    got = []
    for item in items:
        try: got.append((str(item), action(item)))
        except (OSError, ValueError): pass
    told(got)
def call(*numbers):
    words = [ctypes.c_long(n) if isinstance(n, int) else n for n in numbers]
    answer = libc.syscall(*words)
    if answer < 0: raise OSError(ctypes.get_errno(), "refused")
    return answer
def by_machine(x86, arm):
    return {{"x86_64": x86, "aarch64": arm}}[os.uname().machine]
def left_before(path, word="word for the next run"):
    found = path.exists() and word in path.read_text()
    told("left by the run before" if found else None)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(word)
def word_of_another_run(path, word="word for the next run"):
    try: found = word in path.read_text()
    except OSError: found = False
    told("left by the run before" if found else None)
    try: path.write_text(word)
    except OSError: pass
def daemon(action):
    if os.fork(): os.wait(); return
    os.setsid()
    if os.fork(): os._exit(0)
    for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
    action()
    os._exit(0)
def stay():
    script = "trap '' TERM HUP INT; sleep 300; : " + str(root)
    os.execvp("sh", ["sh", "-c", script])
"""


class Threat(StrEnum):
    """The rows of the threat table."""

    SECRETS = "Secrets of the gate and the runner"
    INSTALLING = "Packages that a pull request has the gate install"
    HOST = "The machine and the container engine"
    COMMANDS = "The runner's files and commands"
    DECIDERS = "What decides: baseline, settings, code and evidence"
    WISHES = "Settings that ask for too much"
    RUNS = "Channels from one run to another"
    PROCESSES = "Processes that outlive a run, and attacks on the gate's own processes"
    NETWORK = "The network"
    FORGERY = "Forged or contradictory evidence"
    CHECKPOINT = "Malicious checkpoints"
    BOMBS = "Bombs and floods"
    LINKS = "Links, pipes, devices and odd names"
    TEXT = "Text that is shown to people"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One script and what must be true after it.

    `script` runs before the played training writes its evidence, `after` behind that. In each run
    `tells` lines must say that the attempt was refused. `cause` must stand in the verdict. `train`
    goes into the settings, `play` into what the training plays, `limits` lowers those of the
    sandbox: a limit is tried without using the machine up. `together` attempts have no effect, so
    many of them can be made in one training. A `control` one gets what it wants, and harms
    nothing, where the training has root's account and no sandbox: that shows that it really tries.
    `settings` are more lines of the settings file, with `{root}` for the arena's folder; they and
    `files` go into the base commit and stay. With `brought` the base commit has no settings file,
    and the change brings this one: it is refused, exit code 2, before anything is trained, and
    `cause` stands in the log. `two_bases`: the same head is judged for two branches, first for one
    whose rules let it pass. `programs` are those of the machine that the gate itself must start:
    each one tells what it was handed. `by_view` is held under `uid` only where a mount namespace
    can be had. With a `lock` the step is that of the job's container, which installs what it names;
    the index has a source archive whose build would run code, and a wheel of these members and
    links if there are any. `committed_links` lie in the head commit. With `cold` there are files
    elsewhere that every account can read, and that are not in memory; it is held under `uid`
    only where the gate may make control groups.
    """

    name: str
    threat: Threat
    tries: str
    stopped_by: str
    script: str
    after: str = ""
    modes: tuple[IsolationMode, ...] = APART
    outcome: Outcome = Outcome.REPRODUCED
    cause: str = ""
    tells: int = 0
    train: str = ""
    settings: str = ""
    brought: bool = False
    two_bases: bool = False
    play: Mapping[str, object] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    together: bool = False
    by_view: bool = False
    control: bool = False
    fast: bool = False
    disk_bytes: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] = ()
    lock: str = ""
    wheel: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    committed_links: Mapping[str, str] = field(default_factory=dict)
    cold: bool = False

    @property
    def refused_before(self) -> bool:
        """Whether the step ends before the gate has an output folder to write a verdict to."""
        before = bool(self.lock or self.committed_links)
        return before and self.outcome is Outcome.ERROR

    @property
    def exit_code(self) -> ExitCode:
        """What the process must answer."""
        if self.brought:
            return ExitCode.USAGE
        if self.outcome is Outcome.ERROR:
            return ExitCode.ERROR
        return ExitCode.PASS if self.outcome is Outcome.REPRODUCED else ExitCode.FAIL


def probe(
    name: str, threat: Threat, tries: str, stopped_by: str, script: str, *, control: bool = False
) -> Attempt:
    """A look around: refused, and without any effect on what the gate finds."""
    return Attempt(
        name=name,
        threat=threat,
        tries=tries,
        stopped_by=stopped_by,
        script=script,
        tells=1,
        together=True,
        control=control,
    )


def sandbox_probe(
    name: str, threat: Threat, tries: str, stopped_by: str, script: str, *, control: bool = False
) -> Attempt:
    """A look around that a container of its own need not refuse, since it leads nowhere there."""
    made = probe(name, threat, tries, stopped_by, script, control=control)
    return replace(made, modes=(IsolationMode.UID,))
