"""What a script takes from its surroundings is told by its line, and nothing else changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

# the comment names the kind and the call
SOURCES = """
import datetime, glob, os, pathlib, random, secrets, threading, time, uuid, torch
uuid.uuid1()  # entropy uuid.uuid1
uuid.uuid4()  # entropy uuid.uuid4
os.urandom(2)  # entropy os.urandom
secrets.randbits(3)  # entropy secrets.randbits
secrets.token_hex()  # entropy secrets.token_hex
random.SystemRandom().random()  # entropy random.SystemRandom.random
random.SystemRandom().choice("ab")  # entropy random.SystemRandom.choice
time.time_ns()  # clock time.time_ns
datetime.datetime.now()  # clock datetime.now
os.getpid()  # process os.getpid
os.listdir()  # order os.listdir
sorted(os.listdir())
list(os.walk("."))  # order os.walk
glob.glob("*")  # order glob.glob
list(pathlib.Path().iterdir())  # order pathlib.iterdir
def draw():
    random.random()  # draw random.random
thread = threading.Thread(target=draw)
thread.start()  # thread threading.Thread
thread.join()
random.random()
torch.set_default_dtype(torch.float64)  # precision default_dtype
torch.set_float32_matmul_precision("high")  # precision float32_matmul_precision
torch.backends.mkldnn.enabled = False  # precision torch.backends.mkldnn.enabled
torch.set_flush_denormal(True)  # precision torch.set_flush_denormal
id(thread)  # address id
def __annotate__(form): return {"x": id(form)}  # as Python 3.14 compiles `x: id`; nobody asks
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
torch.optim.lr_scheduler.StepLR(optimizer, 1)  # schedule StepLR
for _ in range(3):
    weight.square().sum().backward()
    optimizer.step()
"""
# Whatever a program does with these functions works as it did.
UNCHANGED = """
import copy, datetime, inspect, os, pickle, random, shutil, threading, time, uuid, warnings
warnings.simplefilter("error")
import numpy, torch
thread = threading.Thread(target=random.random); thread.start(); thread.join()
for function in (os.urandom, os.getpid, os.listdir, os.scandir, time.time, time.perf_counter):
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function
    assert "built-in function" in repr(function) and function.__doc__
assert str(inspect.signature(os.urandom)) == "(size, /)"
assert shutil._use_fd_functions and os.listdir in os.supports_fd
class Timed:
    timer = time.perf_counter
assert Timed().timer() > 0
assert type(datetime.datetime.now()) is datetime.datetime
class Day(datetime.datetime): pass
assert type(Day.now()) is Day and pickle.loads(pickle.dumps(Day.now))
assert pickle.loads(pickle.dumps(random.random))() < 1
assert isinstance(torch.default_generator, torch.Generator)
assert torch.Generator().manual_seed(3).initial_seed() == 3
assert copy.deepcopy(torch.nn.Linear(2, 2))(torch.ones(2)).shape == (2,)
try:
    os.urandom()
except TypeError as error:
    assert "urandom" in str(error)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
compiled = torch.compile(model, fullgraph=True, backend="eager")
@torch.compile(fullgraph=True, backend="eager")
def twice(value): return model(value) + model(value)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    (compiled(torch.ones(4, 2)).sum() + twice(torch.ones(4, 2)).sum()).backward()
    optimizer.step()
assert len(pickle.dumps(model)) and not model._forward_pre_hooks
"""


def _told(outcome: Outcome) -> list[dict[str, object]]:
    files = sorted(outcome.out.glob("sources-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_each_source_is_told_by_kind_call_and_line(harness: Harness) -> None:
    expected = {
        (*line.partition("# ")[2].split(" ", 1), number)
        for number, line in enumerate(SOURCES.splitlines(), start=1)
        if "# " in line and not line.startswith("def __annotate__")
    }
    told = _told(harness.run(SOURCES))
    assert {(one["kind"], one["call"], one["line"]) for one in told} == expected


def test_a_programs_own_use_of_these_functions_works_as_it_did(harness: Harness) -> None:
    outcome = harness.run(UNCHANGED)
    assert outcome.code == 0, outcome.stderr


def test_a_line_that_reads_a_million_times_is_one_line(harness: Harness) -> None:
    loop = "for _ in range(100_000): time.time()\n"
    told = _told(harness.run(SOURCES.replace("weight =", f"{loop}weight =", 1)))
    assert sum(one["call"] == "time.time" for one in told) == 1
    assert len(told) < 150


def test_the_stack_has_three_of_the_users_frames(harness: Harness) -> None:
    source = "import uuid\ndef a(): uuid.uuid4()\ndef b(): a()\ndef c(): b()\nc()\n"
    (told,) = (one for one in _told(harness.run(source + SOURCES)) if one["line"] == 2)
    names = [str(frame).partition(" ")[2] for frame in told["stack"]]  # type: ignore[attr-defined] # a list
    assert names == ["a", "b", "c"]


# who takes a result lets the next one be made
COMPLETIONS = """
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.pool import ThreadPool
import torch
turns = [threading.Event() for _ in range(5)]; turns[0].set()
def work(turn): return turns[turn].wait() and turn
def shown(iterable, turn=0):
    for taken in iterable:
        yield taken; turns[turn].set(); turn += bool(turn)
with ThreadPoolExecutor(3) as pool:
    for _ in range(20):
        taken = as_completed([pool.submit(work, 0) for _ in range(3)])  # line 13
        assert len([future.result() for future in shown(taken)]) == 3
    waits = [pool.submit(work, turn) for turn in (2, 0, 1)]
    assert [one.result() for one in shown(as_completed(waits, 100), 1)] == [0, 1, 2]  # line 16
    assert list(as_completed([])) == []  # line 17
    try:
        list(as_completed([pool.submit(work, -1)], timeout=0.01))
    except TimeoutError:
        turns[-1].set(); [one.clear() for one in turns[1:4]]
with ThreadPool(3) as pool:
    assert list(shown(pool.imap_unordered(work, (2, 0, 1)), 1)) == [0, 1, 2]  # line 23
    assert sorted(pool.imap_unordered(work, range(0), chunksize=2)) == []
    assert list(pool.imap(work, (1, 0))) == [1, 0]
"""


def test_the_order_in_which_work_is_done_is_told_by_line(harness: Harness) -> None:
    outcome = harness.run(COMPLETIONS)
    assert outcome.code == 0, outcome.stderr
    told = [one for one in _told(outcome) if one["kind"] == "completion"]
    assert {(one["line"], one["call"]) for one in told} == {
        (13, "concurrent.futures.as_completed"),
        (16, "concurrent.futures.as_completed"),
        (17, "concurrent.futures.as_completed"),
        (23, "multiprocessing.Pool.imap_unordered"),
        (24, "multiprocessing.Pool.imap_unordered"),
    }
    calls = [one["before"] for one in told if one["line"] == 13]
    assert calls == [f"call {number}" for number in range(1, 9)]
    # the same order has the same digest, whoever did the work
    (threads, pool) = (one["after"] for one in told if one["line"] in {16, 23})
    assert threads == pool


NOT_COVERED = """
import os, torch
rate = float(os.environ.get("TRAIN_LR", "0.1"))  # line 3
assert os.getenv("TRAIN_TAG") is None and "TRAIN_LR" not in os.environ
os.environ["TRAIN_SET"] = "1"
assert os.environ["TRAIN_SET"] and os.environb.get(b"TRAIN_BYTES") is None
try:
    os.environ["TRAIN_MUST"]
except KeyError as missing:
    assert missing.args == ("TRAIN_MUST",)
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=rate)
for _ in range(2):
    weight.square().sum().backward()
    optimizer.step()
os.makedirs("runs/deep")
torch.save({"ema": weight}, "runs/deep/ema.pt")
torch.save({"half": weight.half()}, "half.pth")
open("notes.txt", "w").close()
"""


def test_variables_that_are_not_set_and_states_that_are_saved_are_told_by_name(
    harness: Harness,
) -> None:
    outcome = harness.run(NOT_COVERED)
    assert outcome.code == 0, outcome.stderr
    told = [(one["kind"], one["call"]) for one in _told(outcome)]
    assert sorted(one for one in told if one[0] in {"variable", "saved"}) == [
        ("saved", "half.pth"),
        ("saved", "runs/deep/ema.pt"),
        ("variable", "TRAIN_LR"),
        ("variable", "TRAIN_MUST"),
        ("variable", "TRAIN_TAG"),
    ]


READS_ITS_OWN = """
import mmap, os
import torch
os.makedirs("conf")
for name in ("data.csv", "conf/a.json", "conf/b.json", "unread.csv", "written.csv"):
    with open(name, "w") as file:
        file.write("1")
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(2):
    float(open("data.csv").read())
    open(os.path.join(os.getcwd(), "conf", "..", "conf", "a.json")).close()
    weight.square().sum().backward()
    optimizer.step()
open("elsewhere.csv", "w").close()
"""


READS_DATABASES = """
import os, sqlite3, torch
for name in ("rows.db", "file:more.db?mode=rw", ":memory:"):
    sqlite3.connect(name, uri=name.startswith("file:")).close()
weight = torch.nn.Parameter(torch.ones(1))
weight.square().sum().backward()
torch.optim.SGD([weight], lr=0.1).step()
"""


def test_a_database_of_the_change_that_is_read_is_told(harness: Harness) -> None:
    outcome = harness.run(READS_DATABASES, REPRO_GATE_CHANGED="rows.db:more.db:other.db")
    told = [str(one["call"]) for one in _told(outcome) if one["kind"] == "opened"]
    assert sorted(told) == ["more.db", "rows.db"]


def test_files_of_the_change_that_are_read_are_told_once(harness: Harness) -> None:
    changed = ("data.csv", "conf/a.json", "conf/b.json", "unread.csv", "written.csv", "gone.csv")
    outcome = harness.run(READS_ITS_OWN, REPRO_GATE_CHANGED=":".join(changed))
    assert outcome.code == 0, outcome.stderr
    told = [str(one["call"]) for one in _told(outcome) if one["kind"] == "opened"]
    assert sorted(told) == ["conf/a.json", "data.csv"]
    without = harness.run(READS_ITS_OWN)
    assert not [one for one in _told(without) if one["kind"] == "opened"]
