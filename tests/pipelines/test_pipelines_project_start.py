"""How a project starts its training: what its pages and scripts type, and console scripts."""

from __future__ import annotations

import shlex

from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.pipelines.project_start import trainings_of, without_runner

LOOP = "import torch\nfor step in range(9):\n    loss.backward()\n"
NEEDS = f"import argparse\nparser.add_argument('--config', required=True)\n{LOOP}"
ENTRY = "import torch\n\n\ndef main():\n    loss.backward()\n"


def started(script: str, text: str, name: str = "README.md", path: str = "train.py") -> str:
    (training,) = trainings_of({path: script}, {name: text})
    return training.command


@each_row(
    ("line", "command"),
    [
        ("    $ accelerate launch train.py --epochs 2", "accelerate launch train.py --epochs 2"),
        (
            "uv run accelerate launch --num_processes 2 train.py",
            "accelerate launch --num_processes 2 train.py",
        ),
        ("torchrun --nproc-per-node=2 ./train.py", "torchrun --nproc-per-node=2 train.py"),
        (
            "accelerate launch \\\n  --mixed_precision no \\\n  -m train x",
            "accelerate launch --mixed_precision no -m train x",
        ),
        # plain Python needs nothing that a page could add
        ("python train.py --epochs 2", "python train.py"),
        ("accelerate launch other.py", "python train.py"),
        ("accelerate launch train.py --data $DATA", "python train.py"),
        ("accelerate launch train.py | tee log", "python train.py"),
        ("accelerate launch train.py --data /path/to/data", "python train.py"),
        ("accelerate launch 'train.py", "python train.py"),
        ("accelerate launch", "python train.py"),
    ],
)
def test_a_launcher_that_a_page_shows_is_taken_where_it_could_be_typed(
    line: str, command: str
) -> None:
    assert started(LOOP, f"# A project\n\n{line}\n") == command


@each_row("name", ["README.md", "Makefile", "scripts/train.sh"])
def test_an_option_that_the_script_requires_is_looked_up(name: str) -> None:
    text = "train:\n\tpython train.py\n\tuv run train.py --config configs/small.yaml\n"
    assert started(NEEDS, text, name) == "python train.py --config configs/small.yaml"


POSITIONAL = f"import argparse\np = argparse.ArgumentParser()\np.add_argument('config')\n{LOOP}"


@each_row(
    ("text", "command"),
    [
        ("python train.py a.yaml --work-dir out\n", "python train.py a.yaml --work-dir out"),
        ("exec python train.py a.yaml\n", "python train.py a.yaml"),
        ("python train.py\n", "python train.py"),
    ],
)
def test_a_word_that_the_script_requires_is_looked_up(text: str, command: str) -> None:
    assert started(POSITIONAL, text, "run.sh") == command


@each_row(
    ("more", "required"),
    [("", ("CONFIG",)), (", nargs='?'", ()), (", default='a'", ()), (", help='a'", ("CONFIG",))],
)
def test_a_word_without_a_default_is_required(more: str, required: tuple[str, ...]) -> None:
    source = POSITIONAL.replace("'config'", f"'config'{more}")
    (training,) = trainings_of({"train.py": source}, {})
    assert training.required == required


def test_an_option_that_nothing_shows_stays_required() -> None:
    (training,) = trainings_of({"train.py": NEEDS}, {"notes.txt": "python train.py --config x"})
    assert (training.command, training.required) == ("python train.py", ("--config",))


def test_a_page_is_named_as_the_reason() -> None:
    (training,) = trainings_of({"train.py": LOOP}, {"README.md": "torchrun train.py\n"})
    assert training.why == ("imports torch and calls backward(), and README.md shows how it starts")


@each_row(("table", "folder"), [("project", ""), ("project", "src/"), ("tool.poetry", "")])
def test_a_console_script_starts_by_its_function_where_no_script_trains(
    table: str, folder: str
) -> None:
    project = f'[{table}.scripts]\nfit = "pkg.cli:main"\n'
    (training,) = trainings_of({f"{folder}pkg/cli.py": ENTRY}, {"pyproject.toml": project})
    assert shlex.split(training.command) == ["python", "-c", "from pkg.cli import main; main()"]
    assert training.workdir == (folder.rstrip("/") or ".")
    assert training.why == "has what the command fit of pyproject.toml calls"


@each_row(
    "project",
    [
        '[project.scripts]\nfit = "pkg.other:main"\n',
        '[project.scripts]\nfit = "pkg.cli:main; import os"\n',
        "[project]\nscripts = 3\n",
        "project = 1\n",
        "[project.scripts",
        f"x = {'[' * 5000}",
    ],
)
def test_what_names_no_function_of_the_project_starts_nothing(project: str) -> None:
    assert trainings_of({"pkg/cli.py": ENTRY}, {"pyproject.toml": project}) == ()


@each_row(
    ("typed", "command", "runner"),
    [
        ("uv run train.py", "python train.py", "uv run"),
        ("uv run --frozen -m pkg.train x", "python -m pkg.train x", "uv run"),
        ("uv run --extra gpu python train.py", "python train.py", "uv run"),
        ("poetry run accelerate launch a.py", "accelerate launch a.py", "poetry run"),
        ("conda run -n lab --live-stream python a.py", "python a.py", "conda run"),
        # it adds a package, which the gate's environment may not have
        ("uv run --with rich train.py", "uv run --with rich train.py", ""),
        ("uv run --frozen", "uv run --frozen", ""),
        ("python train.py", "python train.py", ""),
    ],
)
def test_what_only_enters_an_environment_is_left_out(typed: str, command: str, runner: str) -> None:
    assert without_runner(typed.split()) == (command.split(), runner)


@given(st.text(max_size=300))
def test_any_page_is_read_without_harm(text: str) -> None:
    assert len(trainings_of({"train.py": LOOP}, {"README.md": text, "pyproject.toml": text})) == 1
