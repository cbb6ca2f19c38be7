"""A stranger's file is parsed in a confined child, whichever verb reads it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from command_line import Run, played_once, record
from played_training import Project

from gate.cli import QUICK_VERBS
from gate.commands.verbs import VERBS
from gate.settings.load import MINIMAL_FILE, parse_settings

GATE = Path(parse_settings.__code__.co_filename).parents[1]
# of evidence: what is read becomes these, in whichever process
RECORDS = {
    *("run_evidence", "columns", "step_columns", "step_work", "observations"),
    *("operator_records", "lock_files", "trace", "context_documents"),
}
assert all((GATE / "evidence" / f"{name}.py").is_file() for name in RECORDS)
# where the bytes of a file become values
PARSERS = frozenset(
    str(path)
    for place in (
        *("text/strict_json.py", "text/strict_yaml.py", "text/strict_syntax.py"),
        *("package/signing.py", "package/archive.py", "package/ustar.py"),
        *("data/pointers.py", "data/statistics.py", "data/tables.py"),
        *("checkpoint/formats/*.py", "checkpoint/pickle/*.py", "evidence/*.py"),
    )
    for path in GATE.glob(place)
    if path.stem not in RECORDS
)
TRAINS = "the settings are read by `local_request`, as `doctor` reads them; a run by the reader"
NEED_NOT = {
    "action": "holds the token: the reader, a program of its own, reads all that is not the base's",
    "schema": "reads no file",
    **dict.fromkeys(("history", "slo"), "lines are read in a child: see the tests of fleet"),
    "gameday": f"{TRAINS}; a verdict is read in a child, entries are those of its own copy",
    "baseline": f"{TRAINS}; so is what was downloaded, and the entries are those it judges by",
    **dict.fromkeys(("gate", "run", "judge", "operators", "cost", "noise"), TRAINS),
    **dict.fromkeys(("compare", "seeds", "scaling", "shake"), TRAINS),
    "python-call": "answers from Python go the ways of the verbs that they are named after",
    "bisect": f"{TRAINS}; kept runs are read in a child: see its own tests",
}
# what each other verb is called with, and its exit code: it has come past what it read
CALLS: dict[str, Callable[[Path, str], tuple[int, tuple[str | Path, ...]]]] = {
    "digest": lambda out, _: (0, (out / "package.tar",)),
    "diff": lambda out, _: (0, (out / "package.tar", out / "package.tar")),
    "verify": lambda out, commit: (
        0,
        (out / "package.tar", "--trusted-keys", trust(out), "--commit", commit),
    ),
    "audit": lambda out, _: (1, ("--package", out / "package.tar")),
    "config-hash": lambda out, _: (3, (out / "package.tar",)),
    "diagnose": lambda out, _: (0, (out / "package.tar",)),
    # no such commit: what comes next is a training, which the reader reads
    "reproduce": lambda out, _: (
        2,
        (out / "package.tar", "--trusted-keys", trust(out), "--code", "f" * 40),
    ),
    "init": lambda _, __: (0, ("--command", "python train.py", "--config", "second.yml")),
    "keys": lambda out, _: (0, ("add", out.parent / "keys" / "gate-public-key.pem")),
    # no registry is named: the settings say so
    "fetch": lambda _, commit: (2, (commit,)),
    "rollback": lambda out, _: (
        0,
        ("--packages", out, "--trusted-keys", trust(out), "--out", out.parent / "back"),
    ),
    "doctor": lambda _, __: (0, ()),
}


def trust(out: Path) -> Path:
    return out.parent / "keys" / "trusted-keys.json"


def imported(frame: FrameType) -> bool:
    """Whether a module of parsers is only being imported: its own decorators, its own classes."""
    above: FrameType | None = frame
    while above is not None:
        if above.f_code.co_name == "<module>" and above.f_code.co_filename in PARSERS:
            return True
        above = above.f_back
    return False


@contextmanager
def watched() -> Iterator[set[str]]:
    """The parsers that this very process calls while the body runs; a child's calls end with it."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename in PARSERS and not imported(frame):
            seen.add(f"{Path(code.co_filename).relative_to(GATE)}: {code.co_qualname}")

    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)


@pytest.fixture
def sealed(project: Project, run: Run, tmp_path: Path) -> Path:
    """A passed gate's output folder, sealed; the keys lie beside the project."""

    def seal() -> None:
        record(project, run)
        project.commit()
        assert run("keys", "generate", "--out", tmp_path / "keys").code == 0
        key = tmp_path / "keys" / "signing-key.pem"
        ended = run("gate", "--out", tmp_path / "out", "--signing-key", key, "-q")
        assert ended.code == 0, ended.err

    played_once("sealed-by-command", project, seal)
    return tmp_path / "out"


def test_each_verb_is_called_here_or_says_why_it_need_not_be() -> None:
    assert len(PARSERS) > len(CALLS)
    assert CALLS.keys() | NEED_NOT.keys() == VERBS.keys() | QUICK_VERBS.keys()
    assert not CALLS.keys() & NEED_NOT.keys()


def test_a_parser_that_this_process_calls_is_seen() -> None:
    with watched() as seen:
        parse_settings(MINIMAL_FILE.encode(), "minimal")
    assert "text/strict_yaml.py: parse_yaml" in seen


@pytest.mark.parametrize("verb", CALLS)
def test_no_verb_parses_a_strangers_file_in_its_own_process(
    verb: str, project: Project, run: Run, sealed: Path
) -> None:
    code, words = CALLS[verb](sealed, project.git("rev-parse", "HEAD"))
    with watched() as seen:
        ended = run(verb, *words)
    assert ended.code == code, ended.err
    assert seen == set()


def test_settings_of_a_clone_are_parsed_in_a_child_before_it_is_trained(
    project: Project, run: Run
) -> None:
    (project.path / "repro-gate.yml").write_text("version: 1\nversion: 2\n")
    with watched() as seen:
        ended = run("gate", "-q", "--allow-dirty")
    assert ended.code == 2
    assert "repro-gate.yml" in ended.err
    assert seen == set()
