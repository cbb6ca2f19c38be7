"""What every verb says of itself in 80 columns, and the program's version."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from command_line import Run
from harmless import log_faults
from typer.core import TyperGroup

from gate.cli import QUICK_VERBS, answer
from gate.commands.verbs import HEADINGS, HIDDEN, VERBS, Verbs
from gate.errors import TRACEBACK
from gate.system.version import VERSION

SHOWN = [name for name, verb in VERBS.items() if verb.heading != HIDDEN]
VERB = re.compile(r"^  ([a-z-]+) +(\S.*)$", re.MULTILINE)


def _help(*words: str) -> str:
    done = subprocess.run(
        (sys.executable, "-m", "gate", *words, "--help"),
        env={**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def _verbs(text: str) -> dict[str, str]:
    return dict(VERB.findall(re.split(r"^(?:Commands|Start):\n", text, flags=re.MULTILINE)[1]))


def test_every_verb_stands_under_one_heading() -> None:
    assert {verb.heading for verb in VERBS.values()} == {*HEADINGS, HIDDEN}
    headings = re.findall(r"^([A-Z][a-z]+):$", _help(), re.MULTILINE)
    assert headings == ["Options", *HEADINGS]
    assert {*_verbs(_help())} == {*SHOWN, *QUICK_VERBS}


def test_a_shell_completes_verbs_and_options() -> None:
    named = "import sys; sys.argv[0] = 'repro-gate'; from gate.cli import main; main()"
    verify = ("repro-gate verify --lea", "--least-isolation")
    for words, found in (("repro-gate basel", "baseline"), verify):
        asked = {
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
            "_REPRO_GATE_COMPLETE": "complete_bash",
        }
        done = subprocess.run(
            (sys.executable, "-c", named),
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.split() == [found], done.stderr


@pytest.mark.parametrize("group", [(), ("baseline",), ("keys",)])
def test_the_first_line_of_each_verb_is_whole(group: tuple[str, ...]) -> None:
    verbs = _verbs(_help(*group))
    assert verbs
    assert {name: line for name, line in verbs.items() if not line.endswith(".")} == {}
    assert {name: line for name, line in verbs.items() if line.endswith("..")} == {}
    assert max(map(len, verbs.values())) <= 45


def test_the_list_says_of_each_verb_what_the_verb_says_of_itself() -> None:
    verbs = Verbs({})
    own = {
        name: command.get_short_help_str(100)
        for name in VERBS
        if (command := verbs.get_command(None, name)) is not None and not command.hidden
    }
    assert own == {name: VERBS[name].sentence for name in SHOWN}


def test_the_help_imports_no_verb() -> None:
    code = (
        "import sys\nfrom gate.cli import answer\n"
        "try: answer(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'numpy', 'pydantic', 'requests', 'gate.pipelines.gate'} & {*sys.modules}))"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_each_verb_of_the_readme_is_in_the_help() -> None:
    assert {"gate", "run", "judge", "baseline", "doctor", "digest", "diff"} <= _verbs(
        _help()
    ).keys()


def test_the_version_is_told_for_a_report(run: Run) -> None:
    ended = run("--version")
    assert (ended.code, ended.out) == (0, f"repro-gate {VERSION}\n")
    assert "--version" in _help()


@pytest.mark.parametrize(
    ("words", "verbose"),
    [(["gate", "--verbose"], True), (["gate"], False), ([f"{TRACEBACK}=1", "judge"], True)],
)
def test_what_no_code_expects_is_one_safe_line_and_3(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    verbose: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    def raises(_: object, *, own_process: bool) -> None:
        del own_process
        message = "\x1b[31m##[set-output name=verdict;]reproduced\n::error::x"
        raise KeyError(message)

    # the only way to it: every fault that is known has a class of ours
    monkeypatch.setattr("gate.cli._run", raises)
    name, _, value = words[0].partition("=")
    if value:
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        answer(words[1:] if value else words)
    assert ended.value.code == 3
    told = capsys.readouterr().err
    assert "error: repro-gate itself failed: KeyError" in told
    assert "the same command with REPRO_GATE_TRACEBACK=1 in its environment" in told
    assert ("Traceback" in told) == verbose
    assert log_faults(told.splitlines()) == []


@pytest.mark.parametrize("width", [40, 80, 110])
def test_each_example_can_be_copied_whole(width: int) -> None:
    for name in SHOWN:
        _example_can_be_copied(name, width)


def _example_can_be_copied(name: str, width: int) -> None:
    found = Verbs({}).get_command(None, name)
    assert found is not None
    below = found.commands.values() if isinstance(found, TyperGroup) else (found,)
    for command in below:
        told = (command.help or "").partition("Example: ")[2].strip()
        context = command.make_context(
            name, [], resilient_parsing=True, terminal_width=width, max_content_width=width
        )
        assert told, name
        assert f"  Example: {told}" in context.get_help().splitlines()
