"""Run scripts that use torch, each in a separate process, without importing torch for each.

Importing torch takes two of the three seconds of such a script. So `torch_parent.py` imports torch
once and forks for each script. Scripts cannot tell the difference, which `tests/harness` checks.
Some variables are read only when Python or one of torch's libraries starts, so they cannot be given
to a fork. A script with such a variable gets a fresh Python, and so does one without torch.
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
# generous, because a script takes seconds but the machine may be busy
SECONDS = 300
# each takes a third of a gigabyte of memory
MOST_PARENTS = 3
# prefixes of variables that are read while the script runs, so that a fork can get them
LATE = (
    *("REPRO_GATE_", "PYTHONPATH", "TMPDIR", "HOME", "SET", "FAULT", "NCCL_ALGO"),
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_", "TORCHINDUCTOR_", "TRITON_", "NVTE_", "FLASH_"),
)
# variables that are read when Python and its libraries start: each set of values has one parent
EARLY = frozenset(
    (
        *("PATH", "LANG", "LOGNAME", "USER", "TZ", "OMP_NUM_THREADS", "OMP_DYNAMIC"),
        *("PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"),
        *("MKL_NUM_THREADS", "MKL_DYNAMIC"),
    )
)
# Modules that copy functions of other modules when they are imported. In a fork the copies date
# from before the harness hooked those functions, so such scripts get a fresh Python.
OWN_PYTHON = (
    *(b"torch.compile", b"torch.distributed"),
    *(b"asyncio", b"concurrent", b"multiprocessing", b"queue"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A script's exit code and output."""

    code: int
    stdout: str
    stderr: str


def can_fork(script: Path, variables: Mapping[str, str]) -> bool:
    """Decide whether the script behaves the same in a fork as in a fresh Python."""
    code = script.read_bytes()
    return (
        b"torch" in code
        and not any(word in code for word in OWN_PYTHON)
        and _early(variables).keys() <= EARLY
    )


def _early(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in variables.items() if not name.startswith(LATE)}


def run_forked(folder: Path, words: tuple[str, ...], variables: Mapping[str, str]) -> Ended:
    """Run a script in a fork, in its folder; `words` are the script and its arguments."""
    return _parent(_early(variables)).run(folder, words, variables)


def run_script(folder: Path, variables: Mapping[str, str], *, forked: bool = True) -> Ended:
    """Run `script.py` in its folder with only these variables, in a fork if that is possible."""
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
        """Run a script with its arguments in a fork; kills it after `SECONDS`."""
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
        """True if the parent process is gone: tests of signals and process groups may kill it."""
        return self._process.poll() is not None

    def end(self) -> None:
        """End the parent process."""
        self._answers.close()
        # It ends when its input does. If it was killed before, its input is a broken pipe.
        with suppress(BrokenPipeError):
            self._process.communicate()


_parents: dict[frozenset[tuple[str, str]], TorchParent] = {}


def _parent(variables: Mapping[str, str]) -> TorchParent:
    key = frozenset(variables.items())
    # the dictionary is in order of last use, so its first parent is the one to end
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
    """End all parents when the tests are done."""
    while _parents:
        _parents.popitem()[1].end()
