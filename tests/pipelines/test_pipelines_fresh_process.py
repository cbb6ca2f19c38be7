"""Reading untrusted files in a process of its own: what it may do, and what may become of it.

A process takes half a second to start, so one test asks several things.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from each_row import each_row
from evidence_cases import evidence_of, record_of, settings_of
from harness_folder import HarnessFolder
from real_reader import Answering, answer_bytes, answering

from gate.errors import EvidenceError, OutputError
from gate.evidence.collect import collect_run
from gate.isolation.account_choice import unused_account
from gate.isolation.accounts import release_uid
from gate.isolation.answering_client import LocalAnsweringProcess
from gate.isolation.modes import Credentials
from gate.isolation.process_request import ProcessRequest
from gate.pipelines import reader_questions
from gate.pipelines.confined_reader import READERS, answer_question, read_question
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.reader_questions import (
    Question,
    ReadingFault,
    RunAnswer,
    RunQuestion,
    StateQuestion,
)
from gate.system.console import QuietProgress
from gate.system.files.files import LocalFiles
from gate.training.runs import RunEnd

FILES = LocalFiles()
RUN = record_of().model_copy(update={"output_bytes": 0})
EVIDENCE = evidence_of().model_copy(update={"run": RUN})
Start = Callable[[ProcessRequest], "LocalAnsweringProcess | Answering"]
SERVED = """
import sys; sys.path += sys.argv[1:-1]
from gate.isolation.answering_server import serve
def answer(question):
    {program}
serve(int(sys.argv[-1]), answer)
"""


@dataclass
class Altered:
    """A real process whose children run another program, which can do what the reader could."""

    program: str
    seconds: float = 20.0
    seen: list[ProcessRequest] = field(default_factory=list)

    def __call__(self, request: ProcessRequest) -> LocalAnsweringProcess:
        self.seen.append(request)
        argv = (*request.argv[:4], "-c", SERVED.format(program=self.program), *request.argv[6:])
        return answering(replace(request, argv=argv, timeout_seconds=self.seconds))


@pytest.fixture
def harness(tmp_path: Path) -> HarnessFolder:
    (tmp_path / "out").mkdir()
    return HarnessFolder(path=tmp_path / "out")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "taken"
    made.mkdir()
    (made / "output.txt").write_bytes(b"")
    return made


def reader(start: Start, credentials: Credentials | None = None) -> FreshReader:
    return FreshReader(FILES, start, QuietProgress(), credentials)


def question(harness: HarnessFolder, folder: Path) -> RunQuestion:
    return RunQuestion(
        out=harness.path,
        tree=harness.path.parent,
        output=folder / "output.txt",
        taken={},
        run=RUN,
        train=settings_of().train,
    )


def refusal(start: Start, harness: HarnessFolder, folder: Path) -> EvidenceError:
    with reader(start) as asked, pytest.raises(EvidenceError) as caught:
        asked.ask(question(harness, folder))
    return caught.value


def test_the_answer_is_what_reading_here_would_give(harness: HarnessFolder, folder: Path) -> None:
    harness.whole()
    here = collect_run(FILES, RUN, harness.path, harness.path.parent, b"", settings_of().train)
    with reader(answering) as asked:
        assert asked.ask(question(harness, folder)).evidence == here
        # a second child of the same process
        assert asked.ask(question(harness, folder)).evidence == here


def test_a_fault_comes_back_as_it_was_found(harness: HarnessFolder, folder: Path) -> None:
    harness.whole()
    harness.attest(problems=["cudnn.benchmark is\x1b on"])
    error = refusal(answering, harness, folder)
    assert error.message == "the deterministic settings did not take effect (1 problem)"
    assert error.details == ("process 11, rank 0: cudnn.benchmark is\\x1b on",)
    assert error.hint


def test_it_has_no_variable_of_the_gates_and_no_descriptor(
    harness: HarnessFolder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INPUT_TOKEN", "canary")
    secret = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(secret, True)
    told = Altered(
        "import os; print(sorted(os.environ), sorted(os.listdir('/proc/self/fd')), flush=True); "
        "os._exit(7)"
    )
    error = refusal(told, harness, folder)
    os.close(secret)
    assert error.message.endswith("ended with exit code 7 and no answer")
    limits = ["MALLOC_ARENA_MAX", "OPENBLAS_NUM_THREADS"]
    names = ["LC_ALL", *limits, "PATH", "PYDANTIC_DISABLE_PLUGINS"]
    # 3 is the listing's own: neither the socket nor the wake-up of its parent is there
    assert error.details == (f"{names} {['0', '1', '2', '3']}",)
    assert "canary" not in str(told.seen)


@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        ("bytearray(5 * 1024**3)", "MemoryError"),
        (
            "import os; os.write(os.memfd_create('x'), b'x')",
            "File too large",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed (signal 11)"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGBUS)",
            "was killed: a file was truncated, or its disk failed, while it was read",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGXCPU)",
            "was killed for using too much CPU time or memory",
        ),
        ("import os; os._exit(7)", "ended with exit code 7 and no answer"),
    ],
)
def test_a_reader_that_is_taken_over_gets_nowhere(
    harness: HarnessFolder, folder: Path, attempt: str, told: str
) -> None:
    error = refusal(Altered(attempt), harness, folder)
    assert told in str(error)
    assert "may be crafted to break the reader" in error.hint


def test_a_reader_without_end_is_stopped(harness: HarnessFolder, folder: Path) -> None:
    error = refusal(Altered("import time; time.sleep(60)", seconds=0.3), harness, folder)
    assert "timed out after" in error.message


@pytest.mark.parametrize(
    "answer",
    [b"", b"{}", b"[" * 100_000, b'{"schema_version": "repro-gate.reading-answer/1", "x": 1}'],
    ids=["nothing", "no-document", "deep", "unknown-key"],
)
def test_nonsense_is_an_error(harness: HarnessFolder, folder: Path, answer: bytes) -> None:
    error = refusal(Answering(answer), harness, folder)
    assert "the reading process's answer" in error.message
    assert "may be crafted to break the reader" in error.hint


def test_an_answer_about_another_run_is_refused(harness: HarnessFolder, folder: Path) -> None:
    other = RunAnswer(evidence=evidence_of("strict-2"), end=RunEnd())
    error = refusal(Answering(answer_bytes(RunQuestion, other)), harness, folder)
    assert error.message == "the reading process answered for a different run"


KINDS = sorted(READERS, key=lambda kind: kind.__name__)
NONSENSE: dict[str, dict[str, object]] = {
    "no result": {},
    "neither an answer nor a fault": {"result": {}},
    "both": {"result": {"kind": "answer", "message": "x"}},
    "a kind of fault that no reader has": {"result": {"kind": "RunError", "message": "x"}},
    "no answer": {"result": {"kind": "answer"}},
    "a fault without its words": {"result": {"kind": "DataError"}},
    "another question's answer": {"result": {"kind": "answer", "answer": {"unknown": 1}}},
    "a number": {"result": {"kind": "answer", "answer": 1}},
    "beside the result": {"result": {"kind": "DataError", "message": "x"}, "answer": None},
}


def test_each_question_is_registered_once_and_found_by_its_task() -> None:
    asked = {
        kind
        for kind in vars(reader_questions).values()
        if isinstance(kind, type)
        and issubclass(kind, Question)
        and kind.model_fields["task"].default
    }
    tasks = {kind.model_fields["task"].default for kind in KINDS}
    assert asked == set(READERS)
    assert len(tasks) == len(KINDS)
    # nobody else may ask: a question that is defined elsewhere has no reader
    assert {kind for kind in _subclasses(Question) if kind.model_fields["task"].default} == asked


def _subclasses(kind: type[Question[Any]]) -> Iterator[type[Question[Any]]]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


@each_row("kind", KINDS)
def test_nonsense_is_an_answer_to_no_question(kind: type[Question[Any]]) -> None:
    version = {"schema_version": reader_questions.ANSWER_SCHEMA}
    for name, nonsense in NONSENSE.items():
        written = json.dumps(version | nonsense).encode()
        with reader(Answering(written)) as asked, pytest.raises(EvidenceError) as caught:
            asked.ask(kind.model_construct())
        assert "the reading process's answer: " in caught.value.message, name
        assert "may be crafted to break the reader" in caught.value.hint, name


def test_a_question_survives_the_way_to_the_process_that_reads(
    harness: HarnessFolder, folder: Path
) -> None:
    asked = question(harness, folder)
    assert read_question(asked.model_dump_json().encode()) == asked
    # the fault is a value, whatever was asked
    absent = StateQuestion(path=folder / "absent")
    assert isinstance(answer_question(absent).result, ReadingFault)


def test_a_log_that_the_settings_do_not_describe_is_no_fault_of_the_machine(
    harness: HarnessFolder, folder: Path
) -> None:
    fault = {"kind": "OutputError", "message": "no log", "hint": "Write one."}
    form = RunQuestion.answer_form()
    answer = form.model_validate({"result": fault}).model_dump_json().encode()
    refused = refusal(Answering(answer), harness, folder)
    assert isinstance(refused, OutputError)
    assert refused.hint == "Write one."


def test_text_of_a_reader_that_was_taken_over_shows_as_itself(
    harness: HarnessFolder, folder: Path
) -> None:
    fault = {"kind": "EvidenceError", "message": "\x1b[2J\u202ehello"}
    form = RunQuestion.answer_form()
    answer = form.model_validate({"result": fault}).model_dump_json().encode()
    assert refusal(Answering(answer), harness, folder).message == "\\x1b[2J\\u202ehello"


def test_an_account_that_cannot_read_the_gate_is_given_up_and_said(
    harness: HarnessFolder, folder: Path
) -> None:
    answer = answer_bytes(RunQuestion, RunAnswer(evidence=EVIDENCE, end=RunEnd()))
    account = Credentials(uid=61001, gid=61001)
    processes = Answering(answer, refuses_account=True)
    with reader(processes, account) as asked:
        asked.ask(question(harness, folder))
        asked.ask(question(harness, folder))
    # tried ahead, when it was asked, and then no more
    assert processes.accounts == [account, account, None]
    assert asked.parser_unsandboxed_reason == "cannot start python: permission denied"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another account's process")
def test_it_reads_under_an_account_that_did_not_train(open_folder_for_all: Path) -> None:
    training, account = unused_account(), unused_account()
    assert training is not None
    assert account is not None
    harness = HarnessFolder(path=open_folder_for_all / "out")
    taken = open_folder_for_all / "taken"
    for made in (harness.path, taken):
        made.mkdir()
    (taken / "output.txt").write_bytes(b"")
    harness.whole()
    FILES.give_to(harness.path, training.uid, training.gid)
    harness.path.chmod(0o700)
    with reader(answering, account) as asked:
        asked.let_read(harness.path)
        answer = asked.ask(question(harness, taken))
    for held in (training, account):
        release_uid(held.uid)
    assert answer.evidence.run == RUN
    assert harness.path.stat().st_uid == training.uid
    # an interpreter in somebody's closed home cannot be started
    assert (
        asked.parser_unsandboxed_reason == ""
        or "closed to other accounts" in asked.parser_unsandboxed_reason
    )
