"""Planted causes in real trainings: class, step, line, and the sentence that the user reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from evidence_cases import settings_of
from harness_runs import HarnessRuns

from gate.comparison.compare import compare_results
from gate.diagnosis.diagnosis import CauseClass, Diagnosis
from gate.diagnosis.first_divergence import diagnose_drift, diagnose_repeat
from gate.diagnosis.suspects import KnownLines
from gate.evidence.run_evidence import RunEvidence
from gate.report.brief import cause_words
from gate.verdict.override_findings import changed_seeds, suspected_seeds
from gate.verdict.sources import changed_precision, suspected_sources

pytestmark = pytest.mark.torch

TRAINING = """\
import os, random, secrets, threading, time, uuid
import numpy as np, torch
from torch import nn
{prepare}
data = torch.arange(96.0).reshape(16, 6) / 10
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
order = list(range(16))
{order}
for step in range(1, 9):
    rows = torch.tensor(order[step % 4 * 4 : step % 4 * 4 + 4])
    x = data[rows]
    {forward}
    loss = model(x).square().mean()
    {loss}
    optimizer.zero_grad()
    loss.backward()
    {gradients}
    optimizer.step()
"""
LOADER = """\
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Noisy(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        if not hasattr(self, "noise"):
            self.noise = np.random.default_rng()
        return torch.full((6,), float(index)) + self.noise.normal()
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Noisy(), batch_size=4, num_workers=1):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def script(**places: str) -> str:
    """The training with lines in these places: prepare, order, forward, loss, gradients."""
    empty = {"prepare": "", "order": "", "forward": "pass", "loss": "pass", "gradients": "pass"}
    return TRAINING.format(**(empty | places))


def diagnosed(runs: HarnessRuns, source: str) -> Diagnosis:
    """What the gate says of two strict runs of this script."""
    return explained((runs.run(source), runs.run(source)))


def explained(strict: tuple[RunEvidence, RunEvidence]) -> Diagnosis:
    """The same of two runs that are there."""
    compared = compare_results(*strict, settings_of().compare, ("strict-1", "strict-2"))
    known = KnownLines(overrides=suspected_seeds(strict), sources=suspected_sources(strict))
    found = diagnose_repeat(compared, known, one_cpu_thread=True)
    assert found is not None
    return found


def drifted(before: RunEvidence, after: RunEvidence) -> Diagnosis:
    compared = compare_results(before, after, settings_of().compare, ("baseline", "strict-1"))
    known = KnownLines(
        changed_seeds=changed_seeds(after, before), sources=changed_precision(after, before)
    )
    found = diagnose_drift(compared, known)
    assert found is not None
    return found


CASES = {
    "default-rng-by-hand": (
        script(prepare="shuffler = np.random.default_rng()", order="shuffler.shuffle(order)"),
        CauseClass.SEED,
        (
            "script.py:4 draws from numpy.random.default_rng() without a seed, "
            "first used in step 1's input of the model"
        ),
    ),
    "uuid-shuffle": (
        script(order="order.sort(key=lambda _: uuid.uuid4())"),
        CauseClass.DATA_ORDER,
        (
            "script.py:9 draws from uuid.uuid4(), which no seed sets, "
            "first used in step 1's input of the model"
        ),
    ),
    "urandom-seed": (
        script(
            prepare="mine = random.Random(int.from_bytes(os.urandom(4), 'big'))",
            order="mine.shuffle(order)",
        ),
        CauseClass.SEED,
        (
            "script.py:4 gives random.Random a different seed in each run, "
            "first used in step 1's input of the model"
        ),
    ),
    "private-torch-generator": (
        script(
            prepare="noise = torch.Generator(); noise.seed()",
            forward="x = x + torch.randn(4, 6, generator=noise)",
        ),
        CauseClass.SEED,
        (
            "script.py:4 takes a seed from the machine by torch.Generator.seed(), "
            "first used in step 1's input of the model"
        ),
    ),
    "secret-noise-on-gradients": (
        script(gradients="step < 3 or model[0].weight.grad.add_(secrets.randbits(16) * 1e-6)"),
        CauseClass.RANDOM_STATE,
        (
            "script.py:18 draws from secrets.randbits(), which no seed sets, "
            "first used in step 3's gradients"
        ),
    ),
    "worker-without-seed": (
        LOADER,
        CauseClass.SEED,
        (
            "script.py:9 draws from numpy.random.default_rng() without a seed, "
            "first used in step 1's batch"
        ),
    ),
    "process-id-as-a-seed": (
        script(
            prepare="def seeded(number):\n    return random.Random(number)\n"
            "mine = seeded(os.getpid())",
            order="mine.shuffle(order)",
        ),
        CauseClass.SEED,
        (
            "script.py:6 uses os.getpid(), a different number in each run, "
            "first used in step 1's input of the model"
        ),
    ),
    "results-as-they-are-done": (
        script(
            prepare="from concurrent.futures import ThreadPoolExecutor, as_completed\n"
            "def later(row):\n"
            "    time.sleep(time.perf_counter_ns() % 997 / 10000)\n"
            "    return row\n"
            "pool = ThreadPoolExecutor(8)",
            order="order = [one.result() for one in "
            "as_completed([pool.submit(later, row) for row in order])]",
        ),
        CauseClass.THREAD_RACE,
        (
            "script.py:13 takes results from concurrent.futures.as_completed() as they complete, "
            "in a "
            "different order, first used in step 1's input of the model"
        ),
    ),
    "rate-by-the-clock": (
        script(gradients="optimizer.param_groups[0]['lr'] += (step > 2) * time.time() % 1e-3"),
        CauseClass.OPTIMIZER,
        "script.py:18 reads the time by time.time()",
    ),
    "process-id": (
        script(forward="x = x + (step > 1) * (os.getpid() % 1000) * 1e-3"),
        CauseClass.RANDOM_STATE,
        (
            "script.py:13 uses os.getpid(), a different number in each run, "
            "first used in step 2's input of the model"
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_planted_cause_is_named_by_class_line_and_call(runs: HarnessRuns, case: str) -> None:
    source, cause_class, sentence = CASES[case]
    found = diagnosed(runs, source)
    assert cause_words(found) == sentence
    assert found.cause_class is cause_class
    assert "the time by" in sentence or f"step {found.first_step}'s" in sentence
    assert found.suspects[0].code_place is not None


def test_a_thread_that_draws_is_named_with_its_line(runs: HarnessRuns) -> None:
    """It draws some ten thousand times: how often exactly is nobody's choice."""
    # counted from where it draws: on a busy machine it may begin late
    draw = "def draw():\n    end = time.monotonic() + 0.02\n"
    draw += "    while time.monotonic() < end: random.random()\n"
    start = "thread = threading.Thread(target=draw)\n"
    start += "thread.start(); thread.join()"
    found = diagnosed(runs, script(prepare=draw + start, order="random.shuffle(order)"))
    assert (found.kind, found.first_step) == ("random", 1)
    assert found.cause_class is CauseClass.RANDOM_STATE
    assert cause_words(found) == (
        "script.py:6 draws from random.random() in a thread, first used in step 1's random state"
    )


def test_two_lines_that_fit_are_both_named_with_what_decides(runs: HarnessRuns) -> None:
    name = "name, mine = uuid.uuid4(), 0\nmine = np.random.default_rng()"
    found = diagnosed(runs, script(prepare=name, order="mine.shuffle(order)"))
    assert [suspect.place for suspect in found.suspects] == ["script.py:5", "script.py:4"]
    assert "; or script.py:4 draws from uuid.uuid4()" in cause_words(found)
    assert found.decides == (
        "Give script.py:5 a constant seed, and run again. If the runs still differ, it is "
        "script.py:4."
    )


def test_an_address_is_a_possibility_and_no_claim(runs: HarnessRuns) -> None:
    """Whether an order by address differs is chance; here a number of the machine makes sure."""
    drawn = "held = bytearray(int(open('/proc/self/stat').read().split()[0]) % 65536 * 4096)"
    by_address = "order.sort(key=lambda row: hash(str(id(held) * (row + 1))[-6:]) % 999)"
    own = replace(runs, forked=False)
    found = diagnosed(own, script(prepare=drawn, order=by_address))
    assert (found.kind, found.first_step) == ("input", 1)
    # unwritten memory or a race would look the same
    assert found.cause_class is None
    assert found.likely == ()
    assert " Possibly: script.py:9 uses " in cause_words(found)
    assert cause_words(found).endswith(
        "which may be a different number in each run, first used in step 1's input of the model"
    )


def test_a_stop_by_time_is_named_with_its_line(runs: HarnessRuns) -> None:
    early, late = (
        runs.run(script(forward=f"if time.monotonic() and step > {last}: break")) for last in (2, 3)
    )
    compared = compare_results(early, late, settings_of().compare, ("strict-1", "strict-2"))
    known = KnownLines(sources=suspected_sources((early, late)))
    found = diagnose_repeat(compared, known, one_cpu_thread=True)
    assert found is not None
    assert (found.kind, found.first_step) == ("steps", 3)
    assert found.cause_class is CauseClass.OPTIMIZER
    assert cause_words(found) == "script.py:13 reads the time by time.monotonic()"
    assert found.remedy.startswith(
        "Count steps instead of asking time.monotonic() at script.py:13."
    )


def test_a_file_that_changed_between_the_runs_is_named_with_its_line(
    runs: HarnessRuns, tmp_path: Path
) -> None:
    path = tmp_path / "rows.txt"
    source = script(prepare=f"shift = float(open({str(path)!r}).read())", forward="x = x + shift")
    strict = []
    for shift in ("0.5", "0.25"):
        path.write_text(shift, encoding="utf-8")
        strict.append(runs.run(source))
    found = explained((strict[0], strict[1]))
    assert (found.kind, found.first_step) == ("input", 1)
    assert found.cause_class is CauseClass.DATA
    assert cause_words(found) == (
        f"script.py:4 reads {path}, which changed between the runs, "
        "first used in step 1's input of the model"
    )
    assert found.remedy.startswith(
        f"Declare {path} (`data: [{{path: {path}, as: rows.txt}}]`), and let nothing change it "
        "while the gate runs."
    )


def test_a_file_that_the_first_run_left_for_the_second_is_named(
    runs: HarnessRuns, tmp_path: Path
) -> None:
    path = str(tmp_path / "cache.txt")
    cached = f"""shift = 0.5
if os.path.exists({path!r}): shift = float(open({path!r}).read())
open({path!r}, "w").write("0.25")"""
    found = diagnosed(runs, script(prepare=cached, forward="x = x + shift"))
    assert found.cause_class is CauseClass.DATA
    assert cause_words(found) == (
        f"script.py:5 reads {path}, which only one of the runs read, "
        "first used in step 1's input of the model"
    )


def test_another_seed_of_a_commit_is_named_with_both_numbers(runs: HarnessRuns) -> None:
    before, after = (
        runs.run(script(prepare=f"mine = random.Random({seed})", order="mine.shuffle(order)"))
        for seed in (7, 8)
    )
    found = drifted(before, after)
    assert found.cause_class is CauseClass.SEED
    assert cause_words(found) == (
        "script.py:4 gives random.Random a different seed, 8 instead of 7, "
        "first used in step 1's input of the model"
    )
    assert found.remedy.startswith("Seed random.Random with 7 again at script.py:4. ")


@pytest.fixture(scope="module")
def clipped(runs: HarnessRuns) -> RunEvidence:
    return runs.run(script(gradients="nn.utils.clip_grad_norm_(model.parameters(), 1.0)"))


def test_another_clip_value_is_told_from_the_backward_pass(
    runs: HarnessRuns, clipped: RunEvidence
) -> None:
    after = runs.run(script(gradients="nn.utils.clip_grad_norm_(model.parameters(), 0.5)"))
    found = drifted(clipped, after)
    assert (found.kind, found.first_step) == ("gradients", 1)
    assert found.cause_class is CauseClass.CODE
    assert cause_words(found) == (
        "backward returns the baseline's gradients, but they are different before the update"
    )


def test_a_backend_that_is_switched_off_on_the_way_is_named(
    runs: HarnessRuns, clipped: RunEvidence
) -> None:
    """Which kernels give other bits without it is the machine's affair, so a factor stands in."""
    found = drifted(
        clipped,
        runs.run(
            script(
                forward="if step == 3: torch.backends.mkldnn.enabled = False",
                loss="loss = loss * (1 + 1e-6 * (not torch.backends.mkldnn.enabled))",
                gradients="nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            )
        ),
    )
    assert (found.kind, found.first_step) == ("loss", 3)
    assert found.cause_class is CauseClass.PRECISION
    assert cause_words(found) == (
        "script.py:13 changed torch.backends.mkldnn.enabled from on to off (step 3)"
    )
