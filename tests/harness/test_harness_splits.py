"""A split that is drawn from a listing is told by its line, and no other shuffle is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from gate.harness.sources.splits import MAX_BYTES, splits_in

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch

# the line that draws ends with the call, what lists, and whether that is sorted
SPLITS = {
    "in place": """
        import os, random
        files = os.listdir("data")
        random.Random(0).shuffle(files)  # shuffle os.listdir
        train, test = files[:80], files[80:]
    """,
    "sorted is no help": """
        import glob, random
        files = sorted(glob.glob("data/*.png"))
        random.seed(0)
        random.shuffle(files)  # random.shuffle glob.glob sorted
        train = files[: int(0.8 * len(files))]
    """,
    "indices": """
        from pathlib import Path
        import numpy as np
        def load(root):
            files = [path for path in Path(root).rglob("*.npy") if path.stat().st_size]
            rng = np.random.default_rng(0)
            order = rng.permutation(len(files))  # rng.permutation rglob
            return [files[i] for i in order[:100]], [files[i] for i in order[100:]]
    """,
    "rows of an array": """
        import os, torch
        rows = torch.stack([torch.load(entry) for entry in os.scandir("data")])
        count = len(rows)
        order = torch.randperm(count)  # torch.randperm os.scandir
        held_out = rows[order[:10]]
    """,
    "grown in a loop": """
        import os
        from sklearn.model_selection import train_test_split
        samples, labels = [], []
        for root, _, names in os.walk("data"):
            for name in names:
                samples.append(os.path.join(root, name))
                labels.append(root)
        a, b = train_test_split(samples, labels, random_state=0)  # train_test_split os.walk
    """,
    "a dataset": """
        import os
        from torch.utils.data import random_split
        class Files:
            def __init__(self, names): self.names = names
        everything = Files(names=sorted(os.listdir("data")))
        train, test = random_split(everything, [0.8, 0.2])  # random_split os.listdir sorted
    """,
    "attributes": """
        import random
        from pathlib import Path
        class Files:
            def __init__(self, root, train):
                self.files = list(Path(root).iterdir())
                random.shuffle(self.files)  # random.shuffle iterdir
                self.files = self.files[:90] if train else self.files[90:]
    """,
    "class by class": """
        import os, random
        train = []
        for label in ("cat", "dog"):
            names = os.listdir(label)
            random.shuffle(names)  # random.shuffle os.listdir
            train += names[:50]
    """,
    "a sample": """
        from glob import glob
        import random
        test = random.sample(glob("data/*"), 20)  # random.sample glob
    """,
    "numpy in place": """
        import numpy as np, os
        names = np.array(os.listdir("data"))
        np.random.shuffle(names)  # np.random.shuffle os.listdir
        first, second = np.split(names, [10])
    """,
    "numbers": """
        import os, random
        files = os.listdir("data")
        indices = list(range(len(files)))
        random.shuffle(indices)  # random.shuffle os.listdir
        train = [files[i] for i in indices[:5]]
    """,
}
NO_SPLITS = {
    "batches": """
        import random
        batches = [range(i, i + 4) for i in range(0, 100, 4)]
        random.shuffle(batches)
        first = batches[:3]
    """,
    "the order of an epoch": """
        import os, random
        files = os.listdir("data")
        for epoch in range(3):
            random.shuffle(files)
            for name in files[:100]: print(name)
    """,
    "a shuffle that is not cut": """
        import os, random
        files = os.listdir("data")
        random.shuffle(files)
        for name in files: print(name)
    """,
    "batches of it": """
        import os, torch
        files = os.listdir("data")
        order = torch.randperm(len(files))
        for i in range(0, len(files), 4):
            print([files[j] for j in order[i : i + 4]])
    """,
    "a listing for something else": """
        import os, random
        for name in os.listdir("data"): print(name)
        rows = list(range(100))
        random.shuffle(rows)
        train = rows[:80]
    """,
    "rows of one file": """
        import glob, numpy as np
        (path,) = glob.glob("data/*.npy")
        rows = np.load(path)
        order = np.random.default_rng(0).permutation(len(rows))
        train = rows[order[:80]]
    """,
    "the numbers in a batch": """
        import os, torch
        from torch.utils.data import DataLoader
        loader = DataLoader(os.listdir("data"))
        for batch in loader:
            mixed = batch[torch.randperm(batch.size(0))[:4]]
    """,
    "a hash": """
        import hashlib, os
        files = sorted(os.listdir("data"))
        def side(name): return hashlib.sha256(name.encode()).digest()[0] < 200
        train = [name for name in files if side(name)]
        first = files[:10]
    """,
    "how many classes there are": """
        import os, torch
        model = torch.nn.Linear(8, len(os.listdir("data")))
        order = torch.randperm(1000)
        train = order[:800]
    """,
    "the tree of a program": """
        import ast, random
        nodes = list(ast.walk(ast.parse("1 + 1")))
        random.shuffle(nodes)
        first = nodes[:1]
    """,
    "another function": """
        import os, random
        def first(): return os.listdir("data")
        def second(rows):
            random.shuffle(rows)
            return rows[:10], rows[10:]
    """,
    "put in order again": """
        import os, random
        files = os.listdir("data")
        random.shuffle(files)
        files = sorted(files)
        first = files[:10]
    """,
}


def told(source: str) -> list[tuple[int, str]]:
    return [
        (
            one.drawn.line,
            " ".join((one.drawn.call, one.names.listing, *["sorted"][: one.names.ordered])),
        )
        for one in splits_in(source.encode())
    ]


def marked(source: str) -> list[tuple[int, str]]:
    lines = enumerate(source.splitlines(), 1)
    return [(number, line.partition("  # ")[2]) for number, line in lines if "  # " in line]


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_drawn_from_a_listing_is_found_by_its_line(name: str) -> None:
    source = textwrap.dedent(SPLITS[name])
    assert marked(source)
    assert told(source) == marked(source)


@pytest.mark.parametrize("name", NO_SPLITS)
def test_of_any_other_shuffle_nothing_is_said(name: str) -> None:
    assert told(textwrap.dedent(NO_SPLITS[name])) == []


@pytest.mark.parametrize(
    "source",
    [
        "files = os.listdir(); random.shuffle(files",
        "x = os.listdir\0shuffle",
        "listdir, shuffle = " + "(" * 5000,
        "listdir = shuffle = " + "-" * 5000 + "1",
        "import os, random\nx = os.listdir(); random.shuffle(x); x[:1]\n" + "#" * MAX_BYTES,
    ],
)
def test_what_is_no_python_or_too_long_is_passed_over(source: str) -> None:
    assert splits_in(source.encode()) == ()


def test_a_training_tells_its_split(harness: Harness) -> None:
    source = textwrap.dedent("""
        import os, random, torch
        names = os.listdir("out")
        random.shuffle(names)
        train, test = names[:1], names[1:]
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.square().sum().backward()
        optimizer.step()
    """)
    lines = harness.run(source).lines("sources")
    (line,) = (line for line in lines if line["kind"] == "split")
    assert (line["file"], line["line"], line["step"]) == ("script.py", 4, 1)
    assert (line["call"], line["before"], line["after"]) == ("random.shuffle", "os.listdir", "")
