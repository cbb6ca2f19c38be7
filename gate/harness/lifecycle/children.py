"""Records Python processes that the training starts in a way that may leave the harness out.

A child with `-I`, `-E` or `-S`, or with an environment that lost the gate's variables, never loads
the harness. Only its parent can report it. The functions that start processes are wrapped. An audit
hook instead would be called at every import, open and frame look-up of the training. The gate
decides whether such a child really runs without the harness; plainly harmless commands are left out
here.

Every Python process of a training imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import sys

from ..settings import PREFIX, VARIABLES, current_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

MAX_LINES = 200
MAX_TEXT = 4000  # of one command, in characters
MAX_SHEBANG_BYTES = 200
# Programs that run another program named by their arguments. The gate reads the words of these
# commands, and of shell lines, and has no list of its own.
STARTERS = frozenset(
    (
        *("sh", "bash", "dash", "zsh", "env", "exec", "nice", "nohup", "setsid", "stdbuf"),
        *("sudo", "taskset", "time", "timeout", "numactl"),
        *("ionice", "mpiexec", "mpirun", "srun", "xargs"),
    )
)
ISOLATING_FLAGS = frozenset("IES")
CLEARING_WORDS = ("-i", "-", "--ignore-environment")
# positions of these arguments of `subprocess.Popen`, counted after `args`
EXECUTABLE, SHELL, ENV = 1, 7, 9

_written: set[tuple[object, ...]] = set()
# process ids of children that failed; below, the limit on the digits of a rank
_failed: set[int] = set()
MAX_DIGITS = 7


class Command:
    """A command about to be started; without `env` the child inherits the environment."""

    __slots__ = ("env", "for_shell", "words")

    def __init__(self, words: list[str], *, for_shell: bool = False, env: Any = None) -> None:
        self.words = words
        self.for_shell = for_shell
        self.env = env


class Forks:
    """Counts the children that this process forked, those of data loaders included."""

    count = 0

    @classmethod
    def note(cls) -> None:
        """Count one more."""
        cls.count += 1

    @classmethod
    def begin(cls) -> None:
        """Begin at none in a forked child."""
        cls.count = 0


class Children:
    """Watches the starts of child processes; `environ` is the environment that each must get."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._asked = {name: environ[name] for name in environ if name.startswith(PREFIX)}
        self._knobs = {name: environ[name] for name in VARIABLES.values() if name in environ}
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib is slow to import
        self._folder = os.path.dirname(package)  # noqa: PTH120 - as above

    def hook_os(self) -> None:
        """Hook the functions of `os` that start programs; the remaining ones call these."""
        os.register_at_fork(after_in_parent=Forks.note, after_in_child=Forks.begin)
        self._hook("system", lambda command: Command(_words(command), for_shell=True))
        self._hook("execv", lambda path, args: Command(_program(path, args)))
        self._hook("execve", lambda path, args, env: Command(_program(path, args), env=env))
        for name in ("posix_spawn", "posix_spawnp"):
            self._hook(name, lambda path, args, env, **_: Command(_program(path, args), env=env))

    def hook_subprocess(self) -> None:
        """Hook `subprocess.Popen`, its start and its exit."""
        from ..user_code import unseen_by_warnings

        kind = sys.modules["subprocess"].Popen
        plain = kind.__init__

        def start(process: Any, args: Any, *rest: Any, **named: Any) -> None:
            self.look_at(lambda: _popen(args, rest, named))
            env = rest[ENV] if len(rest) > ENV else named.get("env")
            process._gate_rank = env.get("RANK") if isinstance(env, dict) else None  # noqa: SLF001 - this module's own
            plain(process, args, *rest, **named)

        kind.__init__ = unseen_by_warnings(_named_like(start, plain))
        handle = kind._handle_exitstatus  # noqa: SLF001 - every way of waiting comes by it

        def ends(process: Any, *args: Any, **named: Any) -> None:
            handle(process, *args, **named)
            self.note_exit(process.pid, process.returncode, getattr(process, "_gate_rank", None))

        kind._handle_exitstatus = _named_like(ends, handle)  # noqa: SLF001 - as above

    def hook_multiprocessing(self) -> None:
        """Hook the start of each multiprocessing worker that is not forked."""
        from ..sources.outside import tell_program

        util = sys.modules["multiprocessing.util"]
        plain = util.spawnv_passfds

        def start(path: Any, args: Any, passed: Any) -> Any:
            self.look_at(lambda: Command(_program(path, args)))
            if not _calling_module().startswith("multiprocessing."):
                # Python has no audit event for this way to start a program
                tell_program()
            return plain(path, args, passed)

        util.spawnv_passfds = _named_like(start, plain)  # type: ignore[attr-defined]

    def hook_forks(self) -> None:
        """Hook the poll of multiprocessing workers; all kinds inherit it from `popen_fork`."""
        kind = sys.modules["multiprocessing.popen_fork"].Popen
        plain = kind.poll

        def poll(process: Any, *args: Any, **named: Any) -> Any:
            # `returncode` is set once: report an exit only when this call has found it
            known = process.returncode
            code = plain(process, *args, **named)
            if known is None and code is not None:
                self.note_exit(process.pid, code, None)
            return code

        kind.poll = _named_like(poll, plain)

    def note_exit(self, pid: int, code: int | None, rank: object) -> None:
        """Record that a child has failed; never raises."""
        try:
            if not code or len(_failed) >= MAX_LINES or pid in _failed:
                return
            _failed.add(pid)
            from ..output import Output

            named = isinstance(rank, str) and rank.isascii() and rank.isdigit()
            named = named and len(str(rank)) < MAX_DIGITS
            output = Output(self._asked[f"{PREFIX}OUT"], current_rank(), os.getpid())
            number = int(str(rank)) if named else None
            output.append_line("exits", {"pid": pid, "rank": number, "code": code})
        except Exception:
            # an error of the harness must never reach the script
            return

    def _hook(self, name: str, read: Callable[..., Any]) -> None:
        """Hook a function of `os`; `read` turns its arguments into a command."""
        plain = getattr(os, name, None)
        if plain is None:
            return

        def start(*args: Any, **named: Any) -> Any:
            # the hook of `subprocess` has looked at it already
            if _calling_module() != "subprocess":
                self.look_at(lambda: read(*args, **named))
            return plain(*args, **named)

        setattr(os, name, _named_like(start, plain))

    def look_at(self, read: Callable[[], Command]) -> None:
        """Record a command if it may start a Python without the harness; never raises."""
        try:
            command = read()
            env = os.environ if command.env is None else command.env
            given = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
            kept = self._keeps_harness(given)
            lost = self._lost(given, " ".join(command.words))
            if _worth_telling(command, kept=kept and not lost):
                self._write(command, kept, lost)
        except Exception:
            # The call itself reports wrong arguments. Any other error must never reach the script.
            return

    def _lost(self, given: Mapping[str, str], text: str) -> list[str]:
        """Return the knobs' variables that the child does not get with this process's values.

        A command may itself set one (`env PYTHONHASHSEED=random python`) or remove it.
        """
        lost = []
        for name, knob_value in self._knobs.items():
            _, assigned, rest = text.partition(f"{name}=")
            value = rest.partition(" ")[0].strip("'\";") if assigned else given.get(name)
            taken = f"unset {name}" in text or f"-u {name}" in text
            if taken or value != knob_value:
                lost.append(name)
        return lost

    def _keeps_harness(self, given: Mapping[str, str]) -> bool:
        """Whether a child with this environment loads the harness with the same settings."""
        before, separator, _ = f"{os.pathsep}{given.get('PYTHONPATH', '')}{os.pathsep}".partition(
            f"{os.pathsep}{self._folder}{os.pathsep}"
        )
        # a `sitecustomize.py` in an earlier folder would run instead of the harness's
        hiding = (f"{folder}/sitecustomize.py" for folder in before.split(os.pathsep) if folder)
        if not separator or any(map(os.path.exists, hiding)):
            return False
        return all(given.get(name) == text for name, text in self._asked.items())

    def _write(self, command: Command, kept: bool, lost: list[str]) -> None:  # noqa: FBT001 - a column of the line, as all of them
        from ..output import Output
        from ..user_code import caller_of, calling_frame

        place = caller_of(calling_frame(1)).place
        key = (*command.words, command.for_shell, kept, *lost, str(place))
        # a loop that starts the same program a thousand times writes one line
        if key in _written or len(_written) >= MAX_LINES:
            return
        _written.add(key)
        output = Output(self._asked[f"{PREFIX}OUT"], current_rank(), os.getpid())
        record = {
            "words": _cut(command.words),
            "shell": command.for_shell,
            "kept": kept,
            "lost": lost,
        }
        output.append_line("children", {**record, "file": place.file[-200:], "line": place.line})


def _calling_module() -> str:
    """Return the module that called the hook; empty if the hook is a thread's target."""
    try:
        frame = sys._getframe(2)  # noqa: SLF001 - inspect offers only slower copies
    except ValueError:
        return ""
    return str(frame.f_globals.get("__name__"))


def _named_like(function: Any, plain: Any) -> Any:
    """Do what `functools.wraps` does, which is slow to import."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, name, getattr(plain, name, None))
    function.__wrapped__ = plain
    return function


def _popen(args: Any, rest: tuple[Any, ...], named: Mapping[str, Any]) -> Command:
    """Return the command in the arguments of `subprocess.Popen`."""

    def given(position: int, name: str) -> Any:
        return rest[position] if len(rest) > position else named.get(name)

    words, shell, program = (
        _words(args),
        bool(given(SHELL, "shell")),
        given(EXECUTABLE, "executable"),
    )
    if program is not None and not shell:
        words = _program(program, words)
    return Command(words, for_shell=shell, env=given(ENV, "env"))


def _words(args: Any) -> list[str]:
    """Return the words of a command; a command line in one string is one word.

    Anything but a list or tuple is left alone: reading an iterator would use it up.
    """
    whole = (args,) if isinstance(args, str | bytes | os.PathLike) else args
    return [os.fsdecode(word) for word in whole] if isinstance(whole, list | tuple) else []


def _program(path: Any, args: Sequence[Any]) -> list[str]:
    """Return the program that really starts, and its arguments without `argv[0]`.

    Empty if there is no such file: `os.execvp` tries one folder after another.
    """
    program = os.fsdecode(path)
    exists = os.path.sep not in program or os.path.exists(program)  # noqa: PTH110 - pathlib is slow to import
    return [program, *map(os.fsdecode, args[1:])] if exists else []


def _worth_telling(command: Command, *, kept: bool) -> bool:
    """Whether the command may start a Python and something in it may leave the harness out."""
    if not command.words:
        return False
    if not command.for_shell and not _starts_others(command.words[0]):
        command.words[:0] = _shebang(command.words[0])
    if not command.for_shell and not _starts_others(command.words[0]):
        return False
    text = " ".join(command.words)
    if not ("python" in text or "pypy" in text):
        return False
    return not kept or "PYTHONPATH" in text or any(map(_may_drop_variables, text.split()))


def _starts_others(program: str) -> bool:
    name = program.rpartition("/")[2]
    return name in STARTERS or name.startswith(("python", "pypy"))


def _may_drop_variables(word: str) -> bool:
    if word in CLEARING_WORDS:
        return True
    return word.startswith("-") and not word.startswith("--") and bool(ISOLATING_FLAGS & set(word))


def _shebang(program: str) -> list[str]:
    """Return the interpreter in a script's first line, as words; empty for anything else."""
    folders = [""] if "/" in program else os.environ.get("PATH", "").split(os.pathsep)
    for folder in folders:
        try:
            with open(os.path.join(folder, program), "rb") as file:  # noqa: PTH118, PTH123 - pathlib is slow to import
                head = file.readline(MAX_SHEBANG_BYTES)
        except (OSError, ValueError):
            continue
        return os.fsdecode(head[2:]).split() if head.startswith(b"#!") else []
    return []


def _cut(words: list[str]) -> list[str]:
    """Return the first words that fit into `MAX_TEXT`, the last one cut."""
    kept, room = [], MAX_TEXT
    for word in words:
        if room <= 0:
            break
        kept.append(word[:room])
        room -= len(word) + 1
    return kept
