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
