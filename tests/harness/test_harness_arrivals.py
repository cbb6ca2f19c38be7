"""What comes to a line one by one, from whoever is first: queues, and messages from any rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evidence_cases import evidence_of, settings_of
from harness_runs import HarnessRuns, copy_harness
from traced_runs import line_of

from gate.comparison.compare import compare_results
from gate.diagnosis.first_divergence import diagnose_repeat
from gate.diagnosis.suspects import KnownLines
from gate.evidence.observations import Source, SourceKind
from gate.evidence.run_evidence import RunEvidence
from gate.report.wording import suspect_words
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
def runs(tmp_path_factory: pytest.TempPathFactory) -> HarnessRuns:
    folder = copy_harness(tmp_path_factory.mktemp("arrivals-harness") / "copy")
    return HarnessRuns(folder=folder, runs=tmp_path_factory.mktemp("arrivals"))


@pytest.fixture(scope="module")
def evidence(runs: HarnessRuns) -> RunEvidence:
    return runs.run(QUEUES)


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


TENSORS = """
import asyncio, concurrent.futures, numpy, queue, torch

results = queue.Queue()
for number in range(3):
    results.put(torch.full((2,), number) if number else (torch.zeros(2), numpy.ones(2)))
taken = [results.get() for _ in range(3)]

async def piece(number):
    await asyncio.sleep((2 - number) / 20)
    return number

async def main():
    pieces = [piece(0), asyncio.ensure_future(piece(1)), piece(2)]
    return [await one for one in asyncio.as_completed(pieces)]

assert asyncio.run(main()) == [2, 1, 0]

async def firsts():
    pending = {asyncio.ensure_future(piece(number)) for number in range(3)}
    results = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        results += [one.result() for one in done]
    await asyncio.wait([asyncio.ensure_future(piece(2)), asyncio.ensure_future(piece(1))])
    return results

assert asyncio.run(firsts()) == [2, 1, 0]
with concurrent.futures.ThreadPoolExecutor() as pool:
    left = {pool.submit(pow, 2, number) for number in range(5)}
    while left:
        _, left = concurrent.futures.wait(left, return_when="FIRST_COMPLETED")
    concurrent.futures.wait([pool.submit(pow, 2, number) for number in range(3)])
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2)).sum().backward(); optimizer.step()
"""
MESSAGES = """
import inspect, multiprocessing, os, tempfile, time
import torch, torch.distributed as dist

def begin(path, rank):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)

def other(path):
    begin(path, 1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(3):
            dist.isend(torch.ones(2), 0).wait()
        optimizer.zero_grad(); model(torch.ones(2)).sum().backward(); optimizer.step()
        dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2))
    dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(2), 0)])[0].wait()
    time.sleep(1)  # rank 0 is stopped meanwhile, and this process is its daemon
    optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    path = os.path.join(tempfile.mkdtemp(), "store")
    child = multiprocessing.get_context("fork").Process(target=other, args=(path,), daemon=True)
    child.start()
    begin(path, 0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        first, second, third = torch.zeros(2), torch.zeros(2), torch.zeros(2)
        dist.irecv(first).wait()
        known = dist.irecv(second, 1)
        late = dist.irecv(third, 1)
        known.wait()
        optimizer.zero_grad(); model(first).sum().backward(); optimizer.step()
        late.wait()
        dist.all_reduce(first, async_op=True).wait()
    asynchronous = dist.all_reduce(first, async_op=True)
    batch = dist.batch_isend_irecv([dist.P2POp(dist.irecv, second, 1)])
    optimizer.step()
    asynchronous.wait(); batch[0].wait()
    child.join()
    assert str(inspect.signature(dist.all_reduce)).startswith("(tensor, op=")
"""


@pytest.mark.torch
def test_tensors_coroutines_and_what_is_first_done_are_told_in_the_order_in_which_they_come(
    runs: HarnessRuns,
) -> None:
    told = [one for one in runs.run(TENSORS).sources if one.kind is SourceKind.COMPLETION]
    found = {(one.call, one.line): one for one in told}
    first = ("asyncio.wait", line_of(TENSORS, "asyncio.wait(pending"))
    pooled = ("concurrent.futures.wait", line_of(TENSORS, "wait(left"))
    # who waits for all takes the results from the pieces, in an order of the script's own
    assert found.keys() == {("queue.Queue.get", 7), ("asyncio.as_completed", 15), first, pooled}
    counts = [len(found[key].after.split()) for key in (("queue.Queue.get", 7), first, pooled)]
    assert counts == [3, 3, 5]


def of_ranks_alone(runs: HarnessRuns) -> list[Source]:
    """What rank 0 tells; ranks are forks of a process that has not begun to train."""
    run = replace(runs, forked=False).run(MESSAGES)
    return [one for one in run.sources if one.rank == 0]


@pytest.mark.torch
def test_a_message_is_told_where_it_comes_from_anyone_or_nobody_waits_for_it(
    runs: HarnessRuns,
) -> None:
    told = of_ranks_alone(runs)
    kinds = {(one.kind, one.line) for one in told if one.call == "torch.distributed.irecv"}
    assert kinds == {
        (SourceKind.COMPLETION, line_of(MESSAGES, "irecv(first)")),
        (SourceKind.THREAD, line_of(MESSAGES, "irecv(third")),
    }
    (unwaited,) = (one for one in told if one.line == line_of(MESSAGES, "irecv(third"))
    first = evidence_of().model_copy(update={"sources": (unwaited,)})
    second = evidence_of(values=(2.5, 2.25, 9.0)).model_copy(update={"sources": (unwaited,)})
    compared = compare_results(first, second, settings_of().compare, ("strict-1", "strict-2"))
    known = KnownLines(sources=suspected_sources((first, second)))
    found = diagnose_repeat(compared, known, one_cpu_thread=False)
    assert found is not None
    place = f"script.py:{unwaited.line}"
    assert suspect_words(found.suspects[0]).startswith(
        f"{place} does not wait for the message of torch.distributed.irecv() before the update"
    )
    assert found.remedy.startswith(
        f"Call wait() on what torch.distributed.irecv() returns at {place}."
    )


@pytest.mark.torch
def test_collectives_and_batches_that_nobody_waits_for_are_told_at_their_lines(
    runs: HarnessRuns,
) -> None:
    told = of_ranks_alone(runs)
    unwaited = {(one.call, one.line) for one in told if one.kind is SourceKind.THREAD}
    assert unwaited == {
        ("torch.distributed.irecv", line_of(MESSAGES, "irecv(third")),
        ("torch.distributed.all_reduce", line_of(MESSAGES, "asynchronous = ")),
        ("torch.distributed.batch_isend_irecv", line_of(MESSAGES, "batch = ")),
    }


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
