"""The console: a terminal, a log and a pipe each get what they can show, and no commands."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

import pytest
from each_row import each_row
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from runner_commands import runner_sees_a_command

from gate.report.layout import Cell, Section, table_of
from gate.report.terminal_lines import Sentence, section_view
from gate.system.console import ConsoleProgress, QuietProgress
from gate.system.output_streams import CommandFree
from gate.text.untrusted_text import safe_line

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A stream that is a terminal, and the descriptor where a person would look."""
    outside, inside = pty.openpty()
    with os.fdopen(inside, "w") as stream:
        yield stream, outside
    os.close(outside)


def test_a_log_gets_plain_lines(log: io.StringIO) -> None:
    progress = ConsoleProgress(log)
    progress.step("exporting the commit")
    with progress.running("run strict-1"):
        progress.output(b"epoch 1")
    first, second, third = log.getvalue().splitlines()
    assert (first, second) == ("exporting the commit", "run strict-1 ...")
    assert re.fullmatch(r"run strict-1: ended after \d+\.\d s", third)


def test_a_failed_stretch_does_not_look_done(log: io.StringIO) -> None:
    with pytest.raises(KeyError), ConsoleProgress(log).running("run strict-1"):
        raise KeyError
    assert re.search(r"^run strict-1: stopped after \d+\.\d s$", log.getvalue(), re.MULTILINE)


def test_verbose_shows_the_training_made_safe(log: io.StringIO) -> None:
    ConsoleProgress(log, verbose=True).output(b"\x1b[31m::error::x\x07 [bold]:smile:\xff##[group]")
    assert log.getvalue() == "  | : :error: :x\\x07 [bold]:smile:\ufffd# #[group]\n"


def test_long_lines_are_not_wrapped(log: io.StringIO) -> None:
    ConsoleProgress(log).step("x" * 500)
    assert log.getvalue() == "x" * 500 + "\n"


def test_a_terminal_sees_the_time_pass(terminal: tuple[TextIO, int]) -> None:
    stream, outside = terminal
    progress = ConsoleProgress(stream, verbose=True)
    with progress.running("run [strict]"):
        progress.output(b"epoch 1")
        time.sleep(0.2)
    shown = ""
    # a terminal hands on what was written when it likes
    while " s\r\n" not in shown and select.select([outside], [], [], 60)[0]:
        shown += os.read(outside, 65536).decode()
    assert "0:00:00" in shown
    assert "  | epoch 1" in shown
    assert re.search(r"run \[strict\]: ended after \d+\.\d s", shown)


def test_quiet_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    progress = QuietProgress()
    progress.step("a")
    progress.output(b"b")
    with progress.running("c"):
        pass
    assert capfd.readouterr() == ("", "")


@each_row(
    ("text", "shown"),
    [
        ("a\tb ", "a    b"),
        ("\x1b]0;title\x07x", "x"),
        (":\x1b[0m:set-output", ": :set-output"),
        (":::x", ": : :x"),
        ("###[x]", "## #[x]"),
        ("\u202eevil", "\\u202eevil"),
        ("\x9b2J", "\\x9b2J"),
        ("x" * 1001, "x" * 1000),
    ],
)
def test_text_shows_as_itself(text: str, shown: str) -> None:
    assert safe_line(text) == shown


@given(st.text() | st.binary() | st.text(alphabet=":#[\x1b]0m\r\n;a"))
def test_no_text_can_give_a_command(text: str | bytes) -> None:
    shown = safe_line(text)
    assert "::" not in shown
    assert "##[" not in shown
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Zl", "Zp"}


def test_a_terminal_sees_how_far_it_has_come_and_a_log_does_not(
    terminal: tuple[TextIO, int], log: io.StringIO
) -> None:
    stream, outside = terminal
    with ConsoleProgress(stream).running("run strict-1") as reached:
        assert reached is not None
        reached("run 2 of 4, step 13 of 20 \x1b[31m")
        time.sleep(0.3)
    shown = ""
    while " s\r\n" not in shown and select.select([outside], [], [], 60)[0]:
        shown += os.read(outside, 65536).decode()
    # what a terminal would obey is not handed on
    assert "run 2 of 4, step 13 of 20" in shown
    assert "13 of 20 \x1b[31m" not in shown
    with ConsoleProgress(log).running("run strict-1") as nobody:
        assert nobody is None


NAMES = st.text(st.sampled_from(':#[ab \u200b\u034f\u00ad\n\r\t{"')) | st.text()


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=6))
def test_no_line_is_a_command_however_it_is_written(pieces: list[tuple[str, bool]]) -> None:
    stream = io.StringIO()
    free = CommandFree(stream)
    for text, flushed in pieces:
        free.write(text)
        if flushed:
            free.flush()
    free.flush()
    assert not any(map(runner_sees_a_command, stream.getvalue().splitlines()))


@given(st.lists(st.text(st.sampled_from("ab:#[ \n{}")), max_size=6))
def test_a_stream_without_commands_goes_on_as_it_is(texts: list[str]) -> None:
    assume(not any(map(runner_sees_a_command, "".join(texts).splitlines())))
    stream = io.StringIO()
    free = CommandFree(stream)
    free.writelines(texts)
    free.flush()
    assert stream.getvalue() == "".join(texts)


def test_bytes_are_refused_as_any_text_stream_refuses_them() -> None:
    with pytest.raises(TypeError, match="takes text, not bytes"):
        CommandFree(io.StringIO()).write(b"")  # type: ignore[arg-type]


def test_a_name_in_json_stays_the_name_that_it_is() -> None:
    stream = io.StringIO()
    free = CommandFree(stream)
    free.write(json.dumps({"a##[error]": "::x"}, indent=1))
    free.flush()
    assert "##[" not in stream.getvalue()
    assert json.loads(stream.getvalue()) == {"a##[error]": "::x"}


@pytest.mark.parametrize("width", [60, 80])
def test_no_view_that_is_wrapped_begins_a_line_with_a_command(width: int) -> None:
    stream = io.StringIO()
    console = Console(file=cast("TextIO", CommandFree(stream)), width=width)
    for fill in range(width + 2):
        text = f"{'x' * fill} ::error::y ##[error]z"
        console.print(Sentence(text), crop=False)
        console.print(Text(text, overflow="fold"))
        console.print(section_view(Section(title=text, table=table_of(("a",), [(Cell(text),)], 1))))
    lines = stream.getvalue().splitlines()
    assert "error::y" in stream.getvalue()
    assert not any(map(runner_sees_a_command, lines))


# what a container prints reaches the runner too, without a variable of it
@pytest.mark.parametrize("runner", [{"GITHUB_ACTIONS": "true"}, {}])
@pytest.mark.parametrize("verb", [("digest",), ("diff",), ("diagnose",), ("no-such-verb",)])
def test_a_command_on_a_runner_or_elsewhere_repeats_no_command(
    tmp_path: Path, verb: tuple[str, ...], runner: dict[str, str]
) -> None:
    words = (*verb, "a\n::set-output name=x::y", "##[error]z")
    ended = subprocess.run(
        (sys.executable, "-m", "gate", *words),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **runner, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = f"{ended.stdout}\n{ended.stderr}"
    # a usage error stays one: no fault of the program's own
    assert ended.returncode
    assert "itself failed" not in said
    assert not any(map(runner_sees_a_command, said.splitlines())), said
