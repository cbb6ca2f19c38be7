"""What a process prints on a stream that cannot take everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from each_row import each_row

ROOT = Path(__file__).resolve().parents[2]
STREAMS = "from gate.system.output_streams import prepare_streams; prepare_streams(); "


def _printed(program: str, **variables: str) -> bytes:
    done = subprocess.run(
        (sys.executable, "-c", STREAMS + program),
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        check=True,
    )
    return done.stdout


@each_row(
    ("text", "shown"),
    [
        ("✅ repro-gate passed", b"[ok] repro-gate passed\n"),
        ("loss 1 → 2 … ±3 ×4", b"loss 1 -> 2 ... +/-3 x4\n"),
        ("█▅▁", b"#=_\n"),
        ("ein Schl\N{LATIN SMALL LETTER U WITH DIAERESIS}ssel", b"ein Schl\\xfcssel\n"),
    ],
)
def test_marks_become_letters_where_they_cannot_be_shown(text: str, shown: bytes) -> None:
    assert _printed(f"print({text!r})", PYTHONIOENCODING="ascii") == shown


def test_marks_stay_where_they_can_be_shown() -> None:
    assert _printed("print('✅')", PYTHONIOENCODING="utf-8") == "✅\n".encode()


@each_row("columns", ["0", "1", "abc", "-3"])
def test_a_terminal_without_a_width_loses_no_text(columns: str) -> None:
    program = "from gate.commands.options import console; console().print('passed', soft_wrap=True)"
    assert _printed(program, COLUMNS=columns) == b"passed\n"


def test_a_signal_during_the_start_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    # the program's first import, as slow as it likes to be
    slow = tmp_path / "cli.py"
    slow.write_text("import time\nprint('started', flush=True)\ntime.sleep(600)\n")
    program = (
        "import importlib.util, runpy, sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        place = {str(slow)!r}\n"
        "        if name == 'gate.cli':\n"
        "            return importlib.util.spec_from_file_location(name, place)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "runpy.run_module('gate', run_name='__main__')\n"
    )
    child = subprocess.Popen(
        (sys.executable, "-c", program),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"started\n"
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    assert (child.returncode, said) == (4, b"error: cancelled by SIGINT\n")
