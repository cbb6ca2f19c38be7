"""Python processes that a script starts without the harness are written down by their parent."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gate.harness.settings import VARIABLES

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

PYTHON = sys.executable
CALLS = {
    "run": "subprocess.run([sys.executable, '-I', '-c', 'pass'])",
    "cleared": "subprocess.run([sys.executable, '-c', 'pass'], env={})",
    "other folder": (
        "os.mkdir('beside')\n"
        "changed = {**os.environ, 'REPRO_GATE_OUT': os.path.abspath('beside')}\n"
        "subprocess.run([sys.executable, '-c', ''], env=changed)"
    ),
    "bytes": "subprocess.Popen([os.fsencode(sys.executable), b'-E', b'-c', b'']).wait()",
    "shell": "subprocess.run(sys.executable + ' -S -c \"\"', shell=True)",
    "named": "subprocess.run(['other', '-I', '-c', ''], executable=sys.executable)",
    "popen": "os.popen(sys.executable + ' -I -c pass').close()",
    "system": "os.system(f'cd . && {sys.executable} -I -c pass')",
    "spawnv": "os.spawnv(os.P_WAIT, sys.executable, ['python', '-I', '-c', 'pass'])",
    "posix_spawn": "os.waitpid(os.posix_spawn(sys.executable, ['python', '-c', ''], {}), 0)",
    "own variable": "del os.environ['PYTHONPATH']; subprocess.run([sys.executable, '-c', ''])",
    "execvp": "os.execlp(sys.executable, 'python', '-I', '-c', 'pass')",
    "asyncio": (
        "import asyncio\n"
        "asyncio.run(asyncio.create_subprocess_exec(sys.executable, '-I', '-c', ''))"
    ),
    "starter": (
        "subprocess.run(['xargs', sys.executable, '-I', '-c', ''], stdin=subprocess.DEVNULL)"
    ),
    "shebang": "subprocess.run(['./tool'])",
    "another start-up file": (
        "os.mkdir('own'); open('own/sitecustomize.py', 'w').close()\n"
        "changed = {**os.environ, 'PYTHONPATH': 'own:' + os.environ['PYTHONPATH']}\n"
        "subprocess.run([sys.executable, '-c', ''], env=changed)"
    ),
    "worker": (
        "import multiprocessing\ndel os.environ['PYTHONPATH']\n"
        "worker = multiprocessing.get_context('spawn').Process(target=print)\nworker.start()\n"
        "worker.join()"
    ),
}
HARMLESS = {
    "kept": "subprocess.run([sys.executable, '-c', 'pass'])",
    "copied": "subprocess.run([sys.executable, '-c', 'pass'], env=dict(os.environ))",
    "more paths": (
        "env = {**os.environ, 'PYTHONPATH': 'src:' + os.environ['PYTHONPATH']}\n"
        "subprocess.run([sys.executable, '-c', 'pass'], env=env)"
    ),
    "no Python": "subprocess.run(['ls', '-I', 'python'], env={'PATH': os.environ['PATH']})",
    "compiler": "subprocess.run(['true', '-I', '/usr/include/python3.11'])",
    "worker": (
        "import multiprocessing\n"
        "worker = multiprocessing.get_context('spawn').Process(target=print)\nworker.start()\n"
        "worker.join()"
    ),
    "missing": (
        "try:\n    os.execvp('python-that-is-not-there', ['python', '-I'])\n"
        "except FileNotFoundError:\n    pass"
    ),
}
SCRIPT = """
import os, subprocess, sys
if __name__ == "__main__":
    with open("tool", "w") as tool:
        tool.write("#!" + sys.executable + " -I\\n")
    os.chmod("tool", 0o755)
    {call}
"""


def script(call: str) -> str:
    return SCRIPT.format(call=call.replace("\n", "\n    "))


def told(outcome: Outcome) -> list[dict[str, Any]]:
    paths = outcome.out.glob("children-r0-*.jsonl")
    return [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_child_without_the_harness_is_written_down_with_its_line(
    harness: Harness, call: str
) -> None:
    outcome = harness.run(script(call))
    assert (outcome.code, outcome.stderr) == (0, "")
    # the tracker of shared memory is a child of its own
    lines = [line for line in told(outcome) if "resource_tracker" not in str(line["words"])]
    (line,) = lines
    assert line["file"] == "script.py"
    assert line["line"] >= 7


@pytest.mark.parametrize("call", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_brings_the_harness_along_or_is_no_python_is_not_told(
    harness: Harness, call: str
) -> None:
    outcome = harness.run(script(call))
    assert (outcome.code, outcome.stderr) == (0, "")
    assert told(outcome) == []


LOSING = {
    "environment": (
        "subprocess.run([sys.executable, '-c', ''], env={{k: v for k, v in os.environ.items()"
        " if k != {name!r}}})"
    ),
    "another value": (
        "subprocess.run([sys.executable, '-c', ''], env={{**os.environ, {name!r}: '7'}})"
    ),
    "temporarily": (
        "with unittest.mock.patch.dict(os.environ):\n"
        "    del os.environ[{name!r}]\n    os.system(sys.executable + ' -c pass')"
    ),
    "on its way": "subprocess.run(['env', {name!r} + '=8', sys.executable, '-c', ''])",
    "in a shell": "os.system('unset ' + {name!r} + '; ' + sys.executable + ' -c pass')",
}


@pytest.mark.parametrize("losing", LOSING.values(), ids=LOSING)
def test_a_child_that_lost_a_variable_of_a_knob_is_told_by_its_name(
    harness: Harness, losing: str
) -> None:
    """Each knob that is a variable, in a child that the harness comes along to."""
    names = list(VARIABLES.values())
    calls = "import unittest.mock\n" + "\n".join(losing.format(name=name) for name in names)
    given = dict.fromkeys(names, "1")
    lines = told(harness.run(script(calls), **given))
    assert [(line["lost"], line["kept"]) for line in lines] == [([name], True) for name in names]


def test_the_words_are_those_of_the_command(harness: Harness) -> None:
    (line,) = told(harness.run(script(CALLS["run"])))
    assert line["words"] == [PYTHON, "-I", "-c", "pass"]
    assert (line["shell"], line["kept"]) == (False, True)
    (cleared,) = told(harness.run(script(CALLS["cleared"])))
    assert not cleared["kept"]


def test_a_line_that_starts_the_same_again_is_told_once_and_long_words_are_cut(
    harness: Harness,
) -> None:
    call = "for _ in range(3): subprocess.run([sys.executable, '-I', '-c', '0;' * 5000])"
    (line,) = told(harness.run(script(call)))
    assert len("".join(line["words"])) <= 4000


def test_wrong_arguments_fail_as_they_did(harness: Harness) -> None:
    outcome = harness.run(script("subprocess.run(5)"))
    assert outcome.code == 1
    assert outcome.stderr.endswith("TypeError: 'int' object is not iterable\n")


def test_a_program_that_is_used_up_by_reading_still_starts(harness: Harness) -> None:
    outcome = harness.run(script("subprocess.run(word for word in ('echo', 'started'))"))
    assert outcome.stdout == "started\n"


FAILING = """
import multiprocessing, os, subprocess, sys

def ends(code):
    os._exit(code)

subprocess.run(["sh", "-c", "exit 7"], env={**os.environ, "RANK": "3"})
subprocess.run(["sh", "-c", "kill -9 $$"])
subprocess.run(["sh", "-c", "exit 0"])
worker = multiprocessing.get_context("fork").Process(target=ends, args=(5,))
worker.start()
worker.join()
"""


def test_a_child_that_fails_is_told_with_its_rank_and_exit_code(harness: Harness) -> None:
    outcome = harness.run(FAILING)
    assert outcome.code == 0, outcome.stderr
    told = [(line["rank"], line["code"]) for line in outcome.lines("exits")]
    assert told == [(3, 7), (None, -9), (None, 5)]
