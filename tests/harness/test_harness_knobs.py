"""Each knob inside the process: set, attested, and what its absence does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gate.settings import knobs

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

TABLES = """
import json, torch
from repro_gate_harness.determinism import process_knobs
from repro_gate_harness import settings
print(json.dumps({
    "switches": {name: row.strict for name, row in process_knobs.SWITCHES.items()},
    "seeds": process_knobs.SEEDS,
    "variables": settings.VARIABLES,
}))
"""
# Every switch at a value that is neither strict mode's nor, where that can be, torch's own.
TURNED = {
    "deterministic_algorithms": "warn",
    "memory_fill": "on",
    "cudnn_deterministic": "off",
    "cudnn_benchmark": "on",
    "attention_cudnn": "on",
    "attention_flash": "off",
    "attention_mem_efficient": "off",
    "fp32_matmul": "tf32",
    "fp32_cudnn": "ieee",
    "reduced_fp16": "off",
    "reduced_bf16": "off",
}
DRAWS = """
import json, random
import numpy, torch
print(json.dumps([random.random(), numpy.random.rand(), torch.rand(1).item()]))
"""
SPAWNING = """
import multiprocessing, random

def draw(answers):
    # in the worker alone: an import of torch is most of the time of either
    import numpy, torch
    answers.put([random.random(), numpy.random.rand(), torch.rand(1).item()])

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    worker = context.Process(target=draw, args=(answers,))
    worker.start()
    print(answers.get())
    worker.join()
"""
# Addends of one cell are summed in the order in which threads come by.
RACING = """
import torch
torch.manual_seed(0)
index = torch.randint(0, 1000, (2_000_000,))
values = torch.randn(2_000_000)
seen = set()
for _ in range(30):
    summed = torch.zeros(1000).index_put_((index,), values, accumulate=True)
    seen.add(summed.numpy().tobytes())
    if len(seen) > 1:
        break
print(len(seen))
"""


# A script of the days before `fp32_precision`: it reads and sets the old flags around its steps.
OLD_FLAGS = """
import json, os, torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
allowed = [torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32]
allowed.append(torch.get_float32_matmul_precision())
with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=allowed[0]):
    weight.sum().backward()
    optimizer.step()
if os.environ.get("SET") == "same":
    torch.backends.cudnn.allow_tf32 = allowed[0]
    torch.backends.cuda.matmul.allow_tf32 = allowed[1]
if os.environ.get("SET") == "other":
    torch.backends.cudnn.allow_tf32 = not allowed[0]
    torch.backends.cuda.matmul.allow_tf32 = not allowed[1]
print(json.dumps(allowed), flush=True)
for _ in range(2):
    optimizer.step()
"""
PRECISION = ("fp32_matmul", "fp32_cudnn")


def text(words: dict[str, str]) -> str:
    return ";".join(f"{name}={word}" for name, word in words.items())


@pytest.fixture(scope="module")
def tables(harness: Harness) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(harness.run(TABLES).stdout)
    return found


@pytest.fixture(scope="module")
def turned(harness: Harness) -> Outcome:
    return harness.run("import torch", REPRO_GATE_KNOBS=text(TURNED))


def of_kind(acts: knobs.Acts) -> list[knobs.Knob]:
    return [knob for knob in knobs.KNOBS if knob.acts is acts]


def test_gate_and_harness_have_one_table(tables: dict[str, Any]) -> None:
    assert tables["switches"] == {knob.name: knob.strict for knob in of_kind(knobs.Acts.TORCH)}
    assert tables["seeds"] == [knob.name for knob in of_kind(knobs.Acts.SEED)]
    assert tables["variables"] == {
        knob.name: knob.variable for knob in of_kind(knobs.Acts.ENVIRONMENT)
    }
    assert all(knob.default == knobs.KEEP for knob in of_kind(knobs.Acts.TORCH))


def test_every_switch_can_be_set_alone_and_is_attested(turned: Outcome) -> None:
    assert TURNED.keys() == {knob.name for knob in of_kind(knobs.Acts.TORCH)}
    attestation = turned.document("process")
    assert attestation["problems"] == []
    assert TURNED.items() <= attestation["applied"].items()


def test_variables_are_attested_as_the_process_has_them(harness: Harness) -> None:
    values = {knob.variable: "1" for knob in of_kind(knobs.Acts.ENVIRONMENT)}
    attestation = harness.run("import torch", **values).document("process")
    assert attestation["variables"] == values


def test_a_variable_that_was_lost_on_the_way_is_told(harness: Harness) -> None:
    outcome = harness.run(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(2))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "weight.sum().backward()\n"
        "optimizer.step()\n",
        REPRO_GATE_KNOBS="nccl_algorithm=Ring",
        NCCL_ALGO="Tree",
    )
    (line,) = outcome.lines("overrides")
    assert (line["kind"], line["name"], line["before"], line["after"]) == (
        *("environment", "nccl_algorithm"),
        *("Ring", "Tree"),
    )


@pytest.mark.parametrize(
    ("knob", "place"), [("seed_python", 0), ("seed_numpy", 1), ("seed_torch", 2)]
)
def test_a_stream_without_its_seed_differs_from_run_to_run(
    harness: Harness, knob: str, place: int
) -> None:
    first, second = (
        json.loads(harness.run(DRAWS, REPRO_GATE_KNOBS=f"{knob}=off").stdout) for _ in range(2)
    )
    differing = [number for number in range(3) if first[number] != second[number]]
    assert differing == [place]


def test_the_seed_of_cuda_waits_for_cuda(harness: Harness) -> None:
    source = (
        "import torch\n"
        "print('manual_seed_all' in str(torch.cuda._lazy_seed_tracker.manual_seed_all_cb))\n"
    )
    assert harness.run(source).stdout == "True\n"
    assert harness.run(source, REPRO_GATE_KNOBS="seed_cuda=off").stdout == "False\n"


def test_new_workers_are_seeded_unless_that_is_off(harness: Harness) -> None:
    seeded = {harness.run(SPAWNING).stdout for _ in range(2)}
    free = [harness.run(SPAWNING, REPRO_GATE_KNOBS="seed_workers=off") for _ in range(2)]
    assert len(seeded) == 1
    assert free[0].stdout != free[1].stdout


def test_the_order_of_additions_repeats_under_deterministic_algorithms_alone(
    harness: Harness,
) -> None:
    threads = {"REPRO_GATE_THREADS": "2", "OMP_NUM_THREADS": "2"}
    strict = harness.run(RACING, **threads)
    free = harness.run(RACING, REPRO_GATE_KNOBS="deterministic_algorithms=off", **threads)
    assert (strict.stdout, free.stdout) == ("1\n", "2\n")


def test_sets_of_text_keep_their_order_with_the_hash_seed_alone(harness: Harness) -> None:
    source = "print(list({'loss', 'accuracy', 'weight', 'bias', 'step', 'rank'}))"
    fixed = {harness.run(source, PYTHONHASHSEED="1").stdout for _ in range(2)}
    free = {harness.run(source, PYTHONHASHSEED="random").stdout for _ in range(4)}
    assert len(fixed) == 1
    assert len(free) > 1


def precision_words() -> list[str]:
    return knobs.BY_NAME["fp32_matmul"].accepts.split("|")


def told_of_precision(outcome: Outcome) -> set[tuple[str, str, str]]:
    lines = outcome.lines("overrides") if "overrides" in outcome.names() else []
    return {(line["name"], line["before"], line["after"]) for line in lines}


def test_the_words_of_a_precision_are_those_that_torch_takes_everywhere() -> None:
    assert {knobs.BY_NAME[name].accepts for name in PRECISION} == {"ieee|tf32"}


@pytest.mark.parametrize("mode", ["observe", "restore", "fail"])
@pytest.mark.parametrize("word", precision_words())
def test_a_precision_leaves_the_old_names_working_and_an_equal_setting_is_no_override(
    harness: Harness, word: str, mode: str
) -> None:
    asked = text(dict.fromkeys(PRECISION, word))
    outcome = harness.run(
        OLD_FLAGS, REPRO_GATE_KNOBS=asked, REPRO_GATE_ON_OVERRIDE=mode, SET="same"
    )
    assert (outcome.code, outcome.stderr) == (0, "")
    tf32 = word == "tf32"
    assert json.loads(outcome.stdout) == [tf32, tf32, "high" if tf32 else "highest"]
    attestation = outcome.document("process")
    assert [attestation["applied"][name] for name in PRECISION] == [word, word]
    assert attestation["problems"] == outcome.document("summary")["problems"] == []
    assert told_of_precision(outcome) == set()


@pytest.mark.parametrize("mode", ["observe", "restore"])
@pytest.mark.parametrize("word", precision_words())
def test_another_precision_by_the_old_flags_is_told_once(
    harness: Harness, word: str, mode: str
) -> None:
    asked = text(dict.fromkeys(PRECISION, word))
    outcome = harness.run(
        OLD_FLAGS, REPRO_GATE_KNOBS=asked, REPRO_GATE_ON_OVERRIDE=mode, SET="other"
    )
    other = "ieee" if word == "tf32" else "tf32"
    assert told_of_precision(outcome) == {(name, word, other) for name in PRECISION}
    assert outcome.document("summary")["overridden"] == len(PRECISION)


@pytest.mark.parametrize("word", precision_words())
def test_a_precision_is_set_whatever_names_were_mixed_before(harness: Harness, word: str) -> None:
    source = (
        "import torch\n"
        "from repro_gate_harness.determinism.process_knobs import SWITCHES\n"
        "from torch.backends import cuda, cudnn\n"
        "cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = 'ieee', 'tf32'\n"
        "cuda.matmul.fp32_precision = 'tf32'\n"
        "print(SWITCHES['fp32_cudnn'].read())\n"
        f"for name in {PRECISION}:\n"
        f"    SWITCHES[name].set('{word}')\n"
        "    print(SWITCHES[name].read())\n"
        "with cudnn.flags(enabled=True):\n"
        "    print(cudnn.allow_tf32, cuda.matmul.allow_tf32)\n"
    )
    assert harness.run(source).stdout.split() == [
        *("ieee+tf32", word, word),
        *("True", str(word == "tf32")),
    ]
