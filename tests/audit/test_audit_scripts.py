"""What the syntax of a script shows: seeds, draws, data, flags; and what it must not claim."""

from __future__ import annotations

import sys

from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.audit.items import LineKind
from gate.audit.scripts import MAX_LINES, Script


def told(text: str) -> list[tuple[LineKind, str, str]]:
    return [(line.kind, line.what, line.subject) for line in Script("train.py", text).lines]


@each_row(
    ("text", "line"),
    [
        ("import random\nrandom.seed(1)", (LineKind.SEEDS, "random.seed", "random")),
        ("import numpy as np\nnp.random.seed(1)", (LineKind.SEEDS, "numpy.random.seed", "numpy")),
        (
            "from torch import manual_seed as m\nm(seed)",
            (LineKind.SEEDS, "torch.manual_seed", "torch"),
        ),
        ("g = torch.Generator().manual_seed(3)", (LineKind.SEEDS, "manual_seed", "torch")),
        (
            "import lightning as L\nL.seed_everything(1)",
            (LineKind.SEEDS, "lightning.seed_everything", "all"),
        ),
        (
            "from numpy.random import default_rng\ndefault_rng()",
            (LineKind.UNSEEDED, "numpy.random.default_rng()", "numpy"),
        ),
        ("import random\nrandom.Random(None)", (LineKind.UNSEEDED, "random.Random()", "random")),
        (
            "import random, time\nrandom.seed(int(time.time()))",
            (LineKind.UNSEEDED, "random.seed(time.time())", "random"),
        ),
        ("import random\nrandom.shuffle(x)", (LineKind.DRAWS, "random.shuffle", "random")),
        ("import torch\ntorch.nn.Linear(1, 2)", (LineKind.DRAWS, "torch.nn.Linear", "torch")),
        ("open('data/x.csv')", (LineKind.READS, "open", "data/x.csv")),
        (
            "import numpy as np\nnp.memmap(place)",
            (LineKind.READS, "numpy.memmap", ""),
        ),
        (
            "import os\nos.system('wget https://x/y')",
            (LineKind.DOWNLOADS, "os.system", "wget https://x/y"),
        ),
        (
            "import subprocess\nsubprocess.run(['curl', url])",
            (LineKind.DOWNLOADS, "subprocess.run", ""),
        ),
        (
            "import pandas as pd\npd.read_parquet(path)",
            (LineKind.READS, "pandas.read_parquet", ""),
        ),
        (
            "from datasets import load_dataset\nload_dataset('imdb')",
            (LineKind.DOWNLOADS, "datasets.load_dataset", "imdb"),
        ),
        (
            "import torchvision as t\nt.datasets.MNIST('d', download=True)",
            (LineKind.DOWNLOADS, "torchvision.datasets.MNIST", "d"),
        ),
        (
            "import torch\ntorch.backends.cudnn.benchmark = True",
            (LineKind.FLAG, "torch.backends.cudnn.benchmark = True", ""),
        ),
        (
            "import torch\ntorch.use_deterministic_algorithms(False)",
            (LineKind.FLAG, "use_deterministic_algorithms(False)", ""),
        ),
        ("DataLoader(d, in_order=False)", (LineKind.FLAG, "DataLoader(in_order=False)", "")),
        ("Trainer(deterministic=False)", (LineKind.FLAG, "Trainer(deterministic=False)", "")),
    ],
)
def test_a_line_is_told_by_what_it_does(text: str, line: tuple[LineKind, str, str]) -> None:
    assert told(text) == [line]


@each_row(
    "text",
    [
        "open('out.txt', 'w')",
        "open('out.txt', mode='ab')",
        "from datasets import load_dataset\nload_dataset('imdb', revision='abc')",
        "import torch\ntorch.use_deterministic_algorithms(True)",
        "import torch\ntorch.backends.cudnn.benchmark = False",
        "Model.from_pretrained(path)",
        "print('random.seed(1)')",
        "exec(open('configurator.py').read())",
        "exec(compile(open(name).read(), name, 'exec'))",
        "import os\nos.system('make')",
        "# random.seed()",
    ],
)
def test_what_is_as_it_should_be_or_no_call_is_not_told(text: str) -> None:
    assert told(text) == []


@each_row(
    "text",
    ["def (", "x = " + "(" * 20_000, "\0", "x = " + "-" * 100_000 + "1", "a" + ".b" * 60_000],
)
def test_what_is_no_python_or_a_trap_for_its_reader_is_unreadable_or_empty(text: str) -> None:
    script = Script("train.py", text, frozenset({"a.py"}))
    assert script.lines == ()
    assert script.imports == frozenset()


def test_a_script_of_endless_lines_is_cut() -> None:
    script = Script("train.py", "import random\n" + "random.random()\n" * 5000)
    assert len(script.lines) == MAX_LINES


@each_row(
    ("text", "found"),
    [
        ("import model", {"model.py"}),
        ("from model import Net", {"model.py"}),
        ("import package.data", {"package/data.py"}),
        ("from package import data", {"package/__init__.py", "package/data.py"}),
        ("import library", {"src/library/__init__.py"}),
        ("import os, torch", set()),
    ],
)
def test_imports_lead_to_files_of_the_same_folder(text: str, found: set[str]) -> None:
    files = frozenset({
        "train.py", "model.py", "package/__init__.py", "package/data.py", "src/library/__init__.py",
    })  # fmt: skip
    assert Script("train.py", text, files).imports == found


def test_a_relative_import_counts_from_its_own_folder() -> None:
    files = frozenset({"a/b/train.py", "a/b/near.py", "a/far.py", "near.py"})
    text = "from . import near\nfrom .. import far\nfrom ....... import outside"
    assert Script("a/b/train.py", text, files).imports == {"a/b/near.py", "a/far.py"}


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail_and_nothing_is_imported(text: str) -> None:
    before = set(sys.modules)
    script = Script("train.py", text)
    assert all(line.file == "train.py" for line in script.lines)
    assert set(sys.modules) == before
