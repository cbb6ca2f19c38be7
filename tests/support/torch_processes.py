"""Scripts that use torch, each in a process of its own, without an import of torch for each.

Two of three seconds of such a script are that import. So a process that has done it forks for
them: `torch_parent.py`. It makes no difference to a script, and `tests/harness` holds that; what is
read when Python or a library of torch's starts cannot be given to a fork, and such a script gets a
Python of its own, as does one without torch.
"""

from __future__ import annotations

import atexit
import marshal
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SCRIPT = "script.py"
PARENT = Path(__file__).with_name("torch_parent.py")
# also for a machine that has much else to do: a script takes seconds
SECONDS = 300
# each holds a third of a gigabyte
MOST_PARENTS = 3
# read while the script runs
LATE = (
    *("REPRO_GATE_", "PYTHONPATH", "TMPDIR", "HOME", "SET", "FAULT", "NCCL_ALGO"),
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_", "TORCHINDUCTOR_", "TRITON_", "NVTE_", "FLASH_"),
)
# read when Python and its libraries start: a parent for each set of them
EARLY = frozenset(
    (
        *("PATH", "LANG", "LOGNAME", "USER", "TZ", "OMP_NUM_THREADS", "OMP_DYNAMIC"),
        *("PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"),
        *("MKL_NUM_THREADS", "MKL_DYNAMIC"),
    )
)
# what copies functions of another module when it is imported has them from before they were hooked:
# the compiler, the package of collectives, asyncio and those that hand out work
OWN_PYTHON = (
    *(b"torch.compile", b"torch.distributed"),
    *(b"asyncio", b"concurrent", b"multiprocessing", b"queue"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a script ended, and what it printed."""

    code: int
    stdout: str
    stderr: str


def can_fork(script: Path, variables: Mapping[str, str]) -> bool:
    """Whether a fork makes no difference to this script."""
    code = script.read_bytes()
    return (
        b"torch" in code
        and not any(word in code for word in OWN_PYTHON)
        and _early(variables).keys() <= EARLY
    )


def _early(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in variables.items() if not name.startswith(LATE)}


def run_forked(folder: Path, words: tuple[str, ...], variables: Mapping[str, str]) -> Ended:
    """Run a script that can be forked, with its arguments behind it, in its folder."""
    return _parent(_early(variables)).run(folder, words, variables)


def run_script(folder: Path, variables: Mapping[str, str], *, forked: bool = True) -> Ended:
    """Run `script.py` of a folder, in it, with these variables alone."""
    if forked and can_fork(folder / SCRIPT, variables):
        return run_forked(folder, (SCRIPT,), variables)
    done = subprocess.run(
        [sys.executable, SCRIPT],
        cwd=folder,
        env=dict(variables),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Ended(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


class TorchParent:
    """A process that has imported torch with these variables; it runs one script at a time."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        answers, told = os.pipe()
        self._answers = os.fdopen(answers, "rb", buffering=0)
        self._process = subprocess.Popen(
            [sys.executable, "-c", PARENT.read_text("utf-8"), str(told)],
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[told],
        )
        os.close(told)

    def run(self, folder: Path, words: tuple[str, ...], variables: Mapping[str, str]) -> Ended:
        """Run a script of a folder, with its arguments, in a process that is forked for it."""
        with tempfile.TemporaryDirectory(prefix="repro-gate-output-") as place:
            output = [Path(place, name) for name in ("stdout", "stderr")]
            for path in output:
                path.touch()
            asked = {
                "folder": str(folder),
                "words": list(words),
                "variables": dict(variables),
                "output": list(map(str, output)),
            }
            assert self._process.stdin is not None
            self._process.stdin.write(marshal.dumps(asked))
            self._process.stdin.flush()
            process = self._answer()
            try:
                code = self._answer()
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                self._answer()
                raise
            stdout, stderr = (path.read_text("utf-8") for path in output)
        return Ended(code=code, stdout=stdout, stderr=stderr)

    def _answer(self) -> int:
        if not select.select([self._answers], [], [], SECONDS)[0]:
            raise TimeoutError(f"no answer in {SECONDS} seconds")
        line = self._answers.readline()
        assert line, "the process that imported torch has ended"
        return int(line)

    @property
    def has_ended(self) -> bool:
        """Whether something has ended it: tests of signals and of families of processes may."""
        return self._process.poll() is not None

    def end(self) -> None:
        """End it."""
        self._answers.close()
        # it ends where its input does; what ended before has not read all of that
        with suppress(BrokenPipeError):
            self._process.communicate()


_parents: dict[frozenset[tuple[str, str]], TorchParent] = {}


def _parent(variables: Mapping[str, str]) -> TorchParent:
    key = frozenset(variables.items())
    # the one that was not asked for longest goes first
    found = _parents.pop(key, None)
    if found is not None and found.has_ended:
        found.end()
        found = None
    if found is None:
        if len(_parents) == MOST_PARENTS:
            _parents.pop(next(iter(_parents))).end()
        found = TorchParent(variables)
    _parents[key] = found
    return found


@atexit.register
def end_parents() -> None:
    """Nothing of them is left when the tests are done."""
    while _parents:
        _parents.popitem()[1].end()
