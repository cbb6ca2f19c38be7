"""`runs.unaffected: answer`: an entry answers where nothing that the training gets has changed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from baseline_cases import only_entry
from forked_trainings import ForkedBench
from gate_bench import FILES, Bench, gate_call
from git_workshop import Repository

from gate.baseline.entry import Baseline, BaselineEntry, entry_name
from gate.baseline.folder import read_entry, write_entries
from gate.baseline.record import with_digest
from gate.errors import GateError, SettingsError
from gate.pipelines.case import Gated
from gate.verdict.verdict import Outcome, RunPurpose, Verdict, WhyNotRun

pytestmark = pytest.mark.torch
SCRIPT = """
import torch
READING
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).square().sum().backward()
    optimizer.step()
"""
PLAIN = "rate = float(open('numbers.txt').read())"
SETTINGS = """\
version: 1
train:
  command: python train.py
  max_steps: 3
  device: cpu
  files: [train.py, numbers.txt, lib]
runs: {unaffected: answer}
cost: {when: never}
isolation: {mode: none}
"""


@pytest.fixture
def project(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "project")
    made.write("train.py", SCRIPT.replace("READING", PLAIN))
    made.write("numbers.txt", "0.1\n")
    made.write("lib/helper.py", "")
    made.write("docs/page.md", "as it was")
    made.write("repro-gate.yml", SETTINGS)
    made.commit()
    return made


@pytest.fixture
def bench(project: Repository, tmp_path: Path) -> Bench:
    return ForkedBench(project, tmp_path / "out")


def _entry(project: Repository) -> BaselineEntry:
    return read_entry(only_entry(project.path).read_bytes(), "baseline")


def _judge(bench: Bench, base: str, base_path: str = "", **fields: object) -> Gated:
    """The pull request of what lies in the work tree, into `base`."""
    head = bench.project.commit()
    asked = {"pull_request": True, "nightly": False, "settings_from": "base", **fields}
    request = replace(bench.request(base=base, commit=head), **asked)  # type: ignore[arg-type] # by name
    return gate_call(request, replace(bench.adapters(), base_path=base_path))


def _runs(verdict: Verdict) -> int:
    return len(verdict.runs)


def _why(verdict: Verdict) -> str:
    """Why the call trained, as page and comment say it."""
    (told,) = (one.message for one in verdict.findings if one.code == "trained-anyway")
    return told.removeprefix("this call trained although runs.unaffected is answer: ")


def test_a_change_of_what_the_training_does_not_get_is_answered_by_the_entry(
    bench: Bench, project: Repository
) -> None:
    base = bench.record()
    entry = _entry(project)
    assert len(entry.files_sha256) == 64
    project.write("docs/page.md", "another text")
    project.write("other/train.py", "print('another project')")
    verdict = _judge(bench, base).verdict
    assert (verdict.outcome, verdict.passes, _runs(verdict)) == (Outcome.REPRODUCED, True, 0)
    assert verdict.unaffected is not None
    assert verdict.unaffected.commit == entry.commit
    assert verdict.unaffected.files_sha256 == entry.files_sha256
    assert verdict.cause.startswith("no run here: files, settings, data and environment")
    (left_out,) = verdict.not_run
    assert (left_out.part, left_out.why) == (RunPurpose.STRICT_RUNS, WhyNotRun.UNAFFECTED)


def test_a_file_that_the_training_gets_makes_it_train_whatever_happens_to_it(
    bench: Bench, project: Repository
) -> None:
    base = bench.record()
    # one that no import and no open of the script reaches
    project.write("lib/helper.py", "# another line")
    verdict = _judge(bench, base).verdict
    assert _runs(verdict) == 2
    name = entry_name(_entry(project))
    assert _why(verdict) == (
        f"files of the training changed since entry {name} was recorded: lib/helper.py"
    )
    project.write("lib/helper.py", "")
    # one more could shadow an import, or be listed
    project.write("lib/torch.py", "")
    assert _runs(_judge(bench, base).verdict) == 2
    (project.path / "lib/torch.py").unlink()
    (project.path / "lib/helper.py").chmod(0o755)
    assert _runs(_judge(bench, base).verdict) == 2


def test_what_else_decides_or_differs_makes_it_train(bench: Bench, project: Repository) -> None:
    base = bench.record()
    assert _runs(_judge(bench, base, nightly=True).verdict) == 2
    assert _runs(_judge(bench, base, settings_from="work tree").verdict) == 2
    assert _runs(_judge(bench, base, pull_request=False).verdict) == 2
    # the base commit's lock names other packages, so head's own was installed
    assert _runs(_judge(bench, base, os.environ["PATH"]).verdict) == 2
    # a pull request's own entry, with the digest of its own files, answers nothing
    entry = _entry(project)
    forged = with_digest(entry.model_copy(update={"reason": "of these very files"}))
    folder = project.path / ".repro-gate/baseline"
    write_entries(FILES, folder, Baseline(entries=(entry,)), Baseline(entries=(forged,)))
    verdict = _judge(bench, base).verdict
    assert (_runs(verdict), verdict.outcome) == (2, Outcome.BASELINE_CHANGE)


ENTRIES: dict[str, dict[str, object]] = {
    "of other files": {"files_sha256": "0" * 64},
    "of files that are not known": {"files_sha256": ""},
    "that is old": {"recorded_at": "2020-01-01T00:00:00+00:00"},
    "of another machine": {"environment": {"parts": {"device": "cpu", "cpu": "another"}}},
}


@pytest.mark.parametrize("changed", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_answers_for_nothing_else(
    bench: Bench, project: Repository, changed: dict[str, object]
) -> None:
    bench.record()
    entry = _entry(project)
    other = with_digest(BaselineEntry.model_validate(entry.model_dump() | changed))
    folder = project.path / ".repro-gate/baseline"
    write_entries(FILES, folder, Baseline(entries=(entry,)), Baseline(entries=(other,)))
    base = project.commit()
    project.write("docs/page.md", "another text")
    assert _runs(_judge(bench, base).verdict) >= 2


READINGS = {
    "mmap": "import mmap\n"
    "with open('numbers.txt', 'rb') as file, "
    "mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:\n"
    "    rate = float(mapped[:])",
    "ctypes": "import ctypes\n"
    "libc = ctypes.CDLL(None)\n"
    "text = ctypes.create_string_buffer(9)\n"
    "libc.read(libc.open(b'numbers.txt', 0), text, 8)\n"
    "rate = float(text.value)",
    "subprocess": "import subprocess\n"
    "rate = float(subprocess.run(['cat', 'numbers.txt'], capture_output=True).stdout)",
    "os.popen": "import os\nrate = float(os.popen('cat numbers.txt').read())",
    "/proc": "rate = float(open('/proc/self/cwd/numbers.txt').read())",
    "a file elsewhere": "rate = float(open('OUTSIDE').read())",
    "weights": "torch.save(0.1, 'OUTSIDE.pth')\nrate = torch.load('OUTSIDE.pth')",
    "code elsewhere": "exec(open('OUTSIDE.py').read())",
    "its names": "import os\nrate = len(os.listdir('FOLDER')) / 10",
}


@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
def test_what_no_hook_follows_leaves_an_entry_that_answers_nothing(
    bench: Bench, project: Repository, reading: str
) -> None:
    outside = project.path.parent / "srv"
    outside.mkdir()
    (outside / "numbers.txt").write_text("0.1")
    (outside / "numbers.txt.py").write_text("rate = 0.1")
    reading = reading.replace("OUTSIDE", str(outside / "numbers.txt"))
    reading = reading.replace("FOLDER", str(outside))
    project.write("train.py", SCRIPT.replace("READING", reading))
    project.commit()
    proposed = bench.gate().proposed
    assert proposed is not None
    assert proposed.files_sha256 == ""


def test_a_file_that_train_files_leaves_out_is_not_there(bench: Bench, project: Repository) -> None:
    reading = "import os\nprint(sorted(os.listdir()))\nrate = len(open('docs/page.md').read())"
    project.write("train.py", SCRIPT.replace("READING", reading))
    project.commit()
    with pytest.raises(GateError) as caught:
        bench.gate()
    assert caught.value.hint == (
        "docs/page.md is in the commit, and train.files leaves it out. Add it there."
    )
    # neither the folder nor the baseline's
    assert any("['lib', 'numbers.txt', 'train.py']" in line for line in caught.value.details)


def test_a_module_that_train_files_leaves_out_is_named(bench: Bench, project: Repository) -> None:
    project.write("train.py", SCRIPT.replace("READING", "from helpers import rate"))
    project.write("helpers.py", "rate = 0.1")
    project.commit()
    with pytest.raises(GateError) as caught:
        bench.gate()
    assert "helpers.py is in the commit, and train.files leaves it out" in caught.value.hint


def test_patterns_that_leave_nothing_to_start_are_refused(
    bench: Bench, project: Repository
) -> None:
    project.write("repro-gate.yml", SETTINGS.replace("[train.py, numbers.txt, lib]", "[tran.py]"))
    project.commit()
    with pytest.raises(GateError, match=r"train\.files leaves no file of the folder"):
        bench.gate()


def test_an_entry_was_judged_by_these_settings(bench: Bench, project: Repository) -> None:
    """What was merged since: a run would be an error, or find another image or a network."""
    bench.record()
    for more in (
        "determinism: {on_override: fail}",
        "compare: {allow_not_finite: [{pattern: '*', reason: masks}]}",
        "isolation: {mode: none, network: true}",
    ):
        lines = [line for line in SETTINGS.splitlines() if not more.startswith(line[:9])]
        project.write("repro-gate.yml", "\n".join((*lines, more)))
        base = project.commit()
        project.write("docs/page.md", more)
        assert _runs(_judge(bench, base).verdict) == 2


def test_a_package_that_was_not_there_may_be_one_that_a_run_would_take(
    bench: Bench, project: Repository
) -> None:
    bench.record()
    entry = _entry(project)
    fewer = tuple(line for line in entry.environment.packages if not line.startswith("pytest=="))
    assert fewer != entry.environment.packages
    assert "pytest" not in entry.environment.imported
    environment = entry.environment.model_copy(update={"packages": fewer})
    other = with_digest(entry.model_copy(update={"environment": environment}))
    folder = project.path / ".repro-gate/baseline"
    write_entries(FILES, folder, Baseline(entries=(entry,)), Baseline(entries=(other,)))
    base = project.commit()
    project.write("docs/page.md", "another text")
    assert _runs(_judge(bench, base).verdict) == 2


@pytest.mark.parametrize("name", ["PATH", "PYTHONPATH"])
def test_a_folder_of_the_pull_request_that_a_run_would_search_makes_it_train(
    bench: Bench, project: Repository, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As an environment below the checkout, into which the pull request puts a start-up file."""
    place = project.path / "env/bin"
    if name == "PATH":
        monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    else:
        # absent, so that the entry is recorded without it in sight
        train = f"train:\n  env: {{LIBRARIES: '{place}'}}"
        project.write("repro-gate.yml", SETTINGS.replace("train:", train, 1))
        project.commit()
    base = bench.record()
    project.write("docs/page.md", "another text")
    assert _runs(_judge(bench, base).verdict) == 0
    project.write("env/lib/sitecustomize.py", "")
    assert _runs(_judge(bench, base).verdict) == 2


def test_a_command_that_is_no_python_leaves_an_entry_that_answers_nothing(
    bench: Bench, project: Repository
) -> None:
    project.write("lib/train.sh", "python train.py")
    shell = SETTINGS.replace("python train.py", "sh lib/train.sh")
    project.write("repro-gate.yml", shell)
    project.commit()
    proposed = bench.gate().proposed
    assert proposed is not None
    assert proposed.files_sha256 == ""


def test_an_answer_needs_to_know_the_files(bench: Bench, project: Repository) -> None:
    lines = [line for line in SETTINGS.splitlines() if "files:" not in line]
    project.write("repro-gate.yml", "\n".join(lines))
    with pytest.raises(SettingsError) as caught:
        bench.request()
    assert any("answer needs train.files" in line for line in caught.value.details)


def test_the_condition_that_does_not_hold_is_named(bench: Bench, project: Repository) -> None:
    base = bench.record()
    entry = _entry(project)
    name, folder = entry_name(entry), only_entry(project.path).parent

    def rewritten(**changes: object) -> str:
        other = with_digest(entry.model_copy(update=changes))
        write_entries(
            FILES, folder, Baseline(entries=(_entry(project),)), Baseline(entries=(other,))
        )
        return _why(_judge(bench, project.commit()).verdict)

    project.write("train.py", SCRIPT.replace("READING", PLAIN) + "\n# a line\n")
    project.write("numbers.txt", "0.10\n")
    told = _why(_judge(bench, base).verdict)
    assert told.startswith(f"files of the training changed since entry {name} was recorded: ")
    assert told.endswith("numbers.txt, train.py")
    project.write("train.py", SCRIPT.replace("READING", PLAIN))
    project.write("numbers.txt", "0.1\n")
    parts = {**entry.environment.parts, "python": "2.7"}
    moved = rewritten(environment=entry.environment.model_copy(update={"parts": parts}))
    assert moved.startswith("the environment is not that of entry ")
    assert ": python is CPython 3." in moved
    assert moved.endswith(", not 2.7")
    assert "was recorded with other settings: train.seed" in rewritten(
        training={**entry.training, "train.seed": "7"}
    )
    assert "does not list all that its training read: it started another program" in rewritten(
        files_sha256=""
    )
    assert "days old, and baseline.stale_after_days is 90" in rewritten(
        recorded_at="2020-01-01T00:00:00+00:00"
    )
