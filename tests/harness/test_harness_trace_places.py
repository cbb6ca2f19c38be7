"""Which part of a step a file of torch's shows, and when lines are followed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import torch.optim.swa_utils
from gate.harness.tracing.places import _phase
import sys
files = (sys.modules["torch.optim." + name].__file__ for name in ("optimizer", "swa_utils"))
print(*(_phase(file) or "none" for file in files))
"""


def test_an_average_of_weights_is_no_step_of_the_optimizer_it_lies_beside() -> None:
    command = (sys.executable, "-c", PROGRAM)
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == "optimizer none\n"


FOLLOWED = """
import threading
from gate.harness.tracing import places
places.watch(lambda file, line: None)
places.unwatch()
print(threading.gettrace())
threading.settrace(print)
places.unwatch()
print(threading.gettrace() is print)
"""


def test_no_thread_is_followed_after_the_end_and_a_debugger_of_the_script_stays() -> None:
    command = (sys.executable, "-c", FOLLOWED)
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == "None\nTrue\n"


ONE_LINE = """
def called(x, y=2): return x + y
def unused(x): return x * 3
class Net: size = 4
square = lambda x: x * x
def two(x):
    def inner(x): return x + 1
    return inner
two(1)
called(1)
"""
FOLLOWS_A_FILE = """
import runpy, sys
from gate.harness.tracing import places
lines = set()
# what the script is, the harness knows by its path
places._users_name = lambda file: "a" if file == sys.argv[1] else ""
places.watch(lambda file, line: lines.add(line))
runpy.run_path(sys.argv[1])
places.unwatch()
print(sorted(lines))
"""


def test_a_function_in_one_line_ran_where_it_was_called(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ONE_LINE.lstrip())
    command = (sys.executable, "-c", FOLLOWS_A_FILE, str(script))
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == "[1, 3, 4, 5, 7, 8, 9]\n"
