"""Which file is a training, told from its text."""

from __future__ import annotations

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from written_texts import ROOT

from gate.pipelines.scaffold import find_trainings

LOOP = "import torch\nfor step in range(9):\n    loss.backward()\n"
GUARDED = "import torch\ndef main(): loss.backward()\nif __name__ == '__main__':\n    main()\n"
MODEL = "import torch\nclass Net(torch.nn.Module): ...\n"
SAMPLE = "import torch\nfor step in range(9):\n    print(model(x))\n"


def _found(**sources: str) -> list[str]:
    named = {name.replace("__", "/") + ".py": text for name, text in sources.items()}
    return [training.command for training in find_trainings(named)]


def test_the_one_script_that_trains_is_found_beside_others() -> None:
    assert _found(train=LOOP, model=MODEL, sample=SAMPLE) == ["python train.py"]


def test_why_it_was_chosen_is_told() -> None:
    (training,) = find_trainings({"train.py": LOOP})
    assert training.why == "imports torch and calls backward()"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GUARDED, "imports torch and calls backward()"),
        *(
            (
                f"import torch\ndef main(): loss.backward()\n{start}\n",
                "imports torch and calls backward()",
            )
            for start in (
                "try:\n    sys.exit(main())\nfinally:\n    print('end')",
                "raise SystemExit(main())",
                "asyncio.run(main())",
                "fire.Fire(main)",
            )
        ),
        (
            "import torch\ndef step(e, b): loss.backward()\nEngine(step).run(loader)\n",
            "imports torch and calls backward()",
        ),
        ("import lightning as L\nL.Trainer().fit(m)\nfor x in y: ...\n", "calls fit()"),
        (
            "from transformers import Trainer\ndef main(): Trainer().train()\nmain()\n",
            "imports transformers and makes a Trainer",
        ),
        ("import torch\nfrom mine import go\nwhile True: go()\n", "has the name of a training"),
    ],
)
def test_each_sign_of_a_training_is_named(text: str, why: str) -> None:
    (training,) = find_trainings({"train.py": text})
    assert training.why.endswith(why)


@each_row(
    "text",
    [
        "import torch\nwith open('x') as f:\n    for x in y:\n        loss.backward()\n",
        "import torch\ntry:\n    while True:\n        loss.backward()\nfinally: ...\n",
        "import lightning as L\ntrainer = L.Trainer()\ntrainer.fit(model)\n",
        "from transformers import Trainer\ntrainer = Trainer(m)\ntrainer.train()\n",
        GUARDED,
    ],
)
def test_a_script_may_be_statements_of_any_kind(text: str) -> None:
    assert _found(anything=text) == ["python anything.py"]


@each_row(
    "path", ["train.py", "main.py", "scripts/train.py", "src/train.py", "src/pkg/finetune_all.py"]
)
def test_it_may_lie_where_trainings_usually_lie(path: str) -> None:
    (training,) = find_trainings({path: LOOP, "lib/net.py": MODEL})
    assert (training.command, training.workdir) == (f"python {path}", ".")


@each_row(
    "text",
    [
        "import torch\ndef step(loss): loss.backward()\n",
        "# import torch\nfor x in y: loss.backward()\n",
        "'import torch'\nfor x in y: loss.backward()\n",
        "import torch\nfor x in y: loss.backward(\n",
        "import torch\nfor x in y: loss.backward()\n\0",
        "",
    ],
)
def test_what_does_nothing_or_cannot_be_read_is_none(text: str) -> None:
    assert find_trainings({"engine.py": text}) == ()


@pytest.mark.parametrize("path", ["tests/loop.py", "test_loop.py", "loop_test.py", "conftest.py"])
def test_tests_are_no_trainings(path: str) -> None:
    assert find_trainings({path: LOOP}) == ()


def test_several_come_with_the_likeliest_first() -> None:
    assert _found(bench=LOOP, a__train=LOOP, train=LOOP, finetune=LOOP) == [
        "python train.py",
        "python a/train.py",
        "python finetune.py",
        "python bench.py",
    ]


def test_examples_count_where_there_is_nothing_else() -> None:
    assert _found(examples__train=LOOP, train=LOOP) == ["python train.py"]
    assert _found(examples__train=LOOP) == ["python examples/train.py"]


def test_a_name_alone_counts_where_nothing_imports_torch() -> None:
    script = "from mine import run\nif __name__ == '__main__':\n    run()\n"
    assert _found(train=script, main=script) == ["python train.py"]
    assert _found(train=script, go=LOOP) == ["python go.py"]


def test_a_script_with_relative_imports_starts_as_a_module_of_its_package() -> None:
    text = "from . import data\n" + LOOP
    sources = {"src/pkg/__init__.py": "", "src/pkg/train.py": text, "src/pkg/sub/__init__.py": ""}
    (training,) = find_trainings(sources)
    assert (training.command, training.workdir) == ("python -m pkg.train", "src")
    (deeper,) = find_trainings({"src/pkg/__init__.py": "", "src/pkg/sub/train.py": text})
    assert (deeper.command, deeper.workdir) == ("python -m pkg.sub.train", "src")


def test_a_package_that_starts_by_itself_is_named_alone() -> None:
    text = "from . import data\n" + LOOP
    (training,) = find_trainings({"pkg/__init__.py": "", "pkg/__main__.py": text})
    assert (training.command, training.workdir) == ("python -m pkg", ".")


def test_a_name_with_a_blank_stays_one_word() -> None:
    (training,) = find_trainings({"my scripts/train.py": LOOP})
    assert training.command == "python 'my scripts/train.py'"


@given(st.text(max_size=200))
def test_any_text_is_looked_at_without_harm(text: str) -> None:
    assert len(find_trainings({"train.py": f"import torch\n{text}"})) <= 1


def test_nesting_without_end_is_no_training() -> None:
    assert find_trainings({"train.py": "import torch\nx = " + "(" * 100_000}) == ()
    assert find_trainings({"train.py": "import torch\nx = " + "-" * 100_000 + "1"}) == ()


def test_each_training_of_the_examples_is_found() -> None:
    paths = sorted((ROOT / "examples").glob("*/train.py"))
    assert paths
    for path in paths:
        (training,) = find_trainings({"train.py": path.read_text("utf-8")})
        assert training.why == "imports torch and calls backward()"
