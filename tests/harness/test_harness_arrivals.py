"""What comes to a line one by one, from whoever is first: queues, and messages from any rank."""

from __future__ import annotations

import pytest
from evidence_cases import evidence_of
from harness_runs import HarnessRuns, copy_harness

from gate.records.observed.evidence import RunEvidence
from gate.records.observed.sources import Source, SourceKind
from gate.verdict.sources import suspected_sources

QUEUES = """
import multiprocessing, numpy, pickle, queue, torch

results = multiprocessing.get_context("fork").Queue()
for number in (3, 1, 2):
    results.put((number, "done"))
taken = [results.get() for _ in range(3)]
beside = queue.Queue()
beside.put(torch.ones(2))
beside.get()

made = numpy.random.SeedSequence()
assert isinstance(made, numpy.random.SeedSequence)
assert pickle.loads(pickle.dumps(made)).entropy == made.entropy
assert numpy.random.SeedSequence(7).spawn(2)[0].entropy == 7
assert isinstance(numpy.random.default_rng(7).bit_generator.seed_seq, numpy.random.SeedSequence)

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad(); model(torch.ones(2)).sum().backward(); optimizer.step()
"""


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> RunEvidence:
    folder = copy_harness(tmp_path_factory.mktemp("arrivals-harness") / "copy")
    return HarnessRuns(folder=folder, runs=tmp_path_factory.mktemp("arrivals")).run(QUEUES)


@pytest.mark.torch
def test_what_a_queue_hands_on_is_told_at_its_line(evidence: RunEvidence) -> None:
    told = [source for source in evidence.sources if source.kind is SourceKind.COMPLETION]
    assert [(one.call, one.line, one.before) for one in told] == [
        ("multiprocessing.Queue.get", 7, "call 2"),
        ("multiprocessing.Queue.get", 7, "call 3"),
    ]
    assert len(told[1].after.split()) == 3


@pytest.mark.torch
def test_the_thread_that_feeds_a_queue_is_no_thread_of_the_scripts(evidence: RunEvidence) -> None:
    assert not [source for source in evidence.sources if source.kind is SourceKind.THREAD]


@pytest.mark.torch
def test_a_seed_that_numpy_takes_from_the_system_is_told_with_its_line(
    evidence: RunEvidence,
) -> None:
    made = [one for one in evidence.overrides if one.name == "numpy.random.SeedSequence"]
    assert [(one.line, one.kind.value, one.scope) for one in made] == [(12, "entropy", "private")]


def arrivals(after: str) -> RunEvidence:
    source = Source(
        rank=0,
        step=1,
        kind=SourceKind.COMPLETION,
        call="torch.distributed.recv",
        before="call 2",
        after=after,
        file="train.py",
        line=9,
        stack=(),
        worker=False,
        thread=False,
    )
    return evidence_of().model_copy(update={"sources": (source,)})


def test_the_same_pieces_in_another_order_are_suspected() -> None:
    (found,) = suspected_sources((arrivals("aa bb"), arrivals("bb aa")))
    assert found.place == "train.py:9"


def test_other_pieces_are_no_order() -> None:
    assert suspected_sources((arrivals("aa bb"), arrivals("aa cc"))) == ()
