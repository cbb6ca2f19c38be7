"""What a hostile training may leave behind, as targets of `make fuzz`: logs and harness files.

Checksums are made here: a mutation must get past them, to what reads the bytes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from event_files import FULL, HEAD, event, history, piece, plain, record
from evidence_cases import record_of
from harness_folder import HarnessFolder, child_line, exact, override_line, source_line

from gate.evidence.collect import collect_run
from gate.evidence.metric_series import file_metrics, output_metrics
from gate.evidence.tensorboard import tensorboard_series
from gate.evidence.trackio_runs import trackio_metrics
from gate.evidence.wandb_runs import wandb_metrics
from gate.settings.gate_settings import TrainSettings
from gate.system.files.files import LocalFiles

# separates the records of an input
BREAK = b"\n--\n"
# of a piece of W&B's log
MOST = 2**15
PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"


def read_any_events(data: bytes) -> None:
    """Read the records of a TensorBoard event file."""
    content = b"".join(map(record, data.split(BREAK)))
    with _written(content, "events.out.tfevents.1.x") as folder:
        tensorboard_series(LocalFiles(), folder, "runs", ("*",))


def read_any_wandb(data: bytes) -> None:
    """Read the records of an offline run of Weights & Biases."""
    content = HEAD + b"".join(piece(FULL, part) for part in data.split(BREAK) if len(part) < MOST)
    with _written(content, "offline-run-20261126_154251-82alu6jm/run-82alu6jm.wandb") as folder:
        wandb_metrics(LocalFiles(), folder, "wandb", ("*",))


def read_any_trackio(data: bytes) -> None:
    """Read the lines of a trackio run."""
    with _written(data, "inbox/0/00000000.jsonl") as folder:
        trackio_metrics(LocalFiles(), folder, "trackio", ("*",))


def read_any_metrics(data: bytes) -> None:
    """Read the lines of a metrics file."""
    with _written(data, "m.jsonl") as folder:
        file_metrics(LocalFiles(), folder / "m.jsonl", "m.jsonl")


def read_any_output(data: bytes) -> None:
    """Read metrics from a training's output."""
    output_metrics(PATTERN, data)


def read_any_harness_file(data: bytes) -> None:
    """Read a successful run with one hostile file: the input is its name, a newline, content."""
    words, _, content = data.partition(b"\n")
    name = Path(words.decode("utf-8", "replace").replace("\0", "")).name or "x"
    with tempfile.TemporaryDirectory() as folder:
        harness = HarnessFolder(path=Path(folder) / "out")
        harness.path.mkdir()
        harness.whole()
        with suppress(OSError):
            (harness.path / name).write_bytes(content)
        collect_run(
            files=LocalFiles(),
            run=record_of(),
            out=harness.path,
            workdir_tree=harness.path.parent,
            output=b"",
            train=TrainSettings(command=("python", "train.py"), max_steps=2),
        )


@contextmanager
def _written(content: bytes, path: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / path
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_bytes(content)
        yield Path(folder)


def event_seeds() -> Iterator[bytes]:
    """Return an event file with two losses."""
    yield BREAK.join(event(step, b"loss", plain(0.5)) for step in (1, 2))


def wandb_seeds() -> Iterator[bytes]:
    """Two steps, one of them with what is no number."""
    yield BREAK.join((history(0, loss=0.5), history(1, loss=0.25, media={"_type": "x", "b": [1]})))


def trackio_seeds() -> Iterator[bytes]:
    """Two steps, one of them with what is no number."""
    line = b'{"v":1,"kind":"metric","run":"a","run_id":"b","metrics":%b,"step":%d}\n'
    yield line % (b'{"loss":0.5}', 0) + line % (b'{"loss":"NaN","media":{"_type":"x"}}', 1)


def metric_seeds() -> Iterator[bytes]:
    """Return metrics files with flat lines, and with nested ones."""
    yield b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 1e-3}\n'
    yield b'{"step": 1, "eval": {"loss": 0.5, "per_class": [1, 2]}, "acc": "0.93"}\n'


def output_seeds() -> Iterator[bytes]:
    """Return output with lines that the pattern matches."""
    yield b"step 1 loss 0.5\nother\nstep 2 loss 0.25\n"


def harness_seeds() -> Iterator[bytes]:
    """Return an input for each kind of file that a harness may write."""
    with tempfile.TemporaryDirectory() as name:
        harness = HarnessFolder(path=Path(name))
        harness.whole()
        harness.metrics({"name": "a", "step": 1, **exact(0.5)})
        harness.overrides(override_line())
        harness.children(child_line("python", "-c", "x"))
        harness.sources(source_line())
        harness.operator_audit()
        harness.ended()
        for file in sorted(harness.path.iterdir()):
            yield file.name.encode() + b"\n" + file.read_bytes()
    given = {"step": 1, "samples": 4, "passes": 1, "settings": {}}
    yield b"given-r0-11.jsonl\n" + json.dumps(given).encode() + b"\n"
