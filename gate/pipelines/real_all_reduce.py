"""A real all-reduce of the workload's own gradients, by ranks that the gate starts.

Each rank contributes the first gradients of a training with its own seed. The program runs like a
training, with the same isolation and interpreter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gate.comparison.measurements import AllReduceSpread
from gate.errors import SettingsError
from gate.pipelines.reader_questions import AllReduceQuestion
from gate.pipelines.trainings import Trainings
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import SEEDS_END
from gate.training.launch import run_folders
from gate.training.run_folders import ALL_REDUCE_PROGRAM
from gate.training.runs import CarriedCheckpoint, CarriedFile, Commit, PlannedRun, RunMode

PLACE: Final = ".repro-gate-all-reduce"
MAX_PROGRAM_BYTES: Final = 64 * 1024
ALIKE: Final = (
    "every rank contributed the same gradients, because the seed has no effect: their sum says "
    "little. Let the script take its seed from {seed} in train.command"
)


def refuse_nodes(settings: GateSettings, what: str) -> None:
    """Raise `SettingsError` for a study of one machine's ranks if runs go to cluster nodes."""
    if settings.cluster.on_nodes:
        raise SettingsError(
            f"{what} measures ranks of one machine, and cluster.engine is "
            f"{settings.cluster.engine}",
            hint="Set cluster.engine to local for it, on a node of the cluster.",
        )


def all_reduce_spread(
    trainings: Trainings, ranks: int, repetitions: int
) -> tuple[AllReduceSpread, tuple[str, ...]]:
    """Return the spread that the ranks measured, and notes on it.

    Raises `SettingsError` if the training leaves no gradients, and `RunError` if a training or the
    all-reduce fails.
    """
    prepared = trainings.prepared
    files, train = prepared.adapters.files, prepared.request.settings.train
    folder = prepared.work / "gradients"
    files.fresh_folder(folder)
    carried: list[CarriedFile] = []
    for rank in range(ranks):
        planned = PlannedRun(
            label=f"gradients-{rank}",
            mode=RunMode.DEFAULT,
            observe=False,
            keep_values=True,
            seed=(train.seed + rank) % SEEDS_END,
        )
        trainings.run(planned)
        if not trainings.ended.keeps_gradients(planned.label):
            raise SettingsError(
                "noise --ranks: the training left no gradients to all-reduce",
                hint="It needs gradients in parameters at the first optimizer step; measure "
                "without --ranks.",
            )
        path = folder / f"rank-{rank}.safetensors"
        carried.append(trainings.ended.take_gradients(planned.label, path))
    alike = len({file.sha256 for file in carried}) == 1
    program = folder / ALL_REDUCE_PROGRAM.name
    sha256 = files.copy_file(ALL_REDUCE_PROGRAM, program, max_bytes=MAX_PROGRAM_BYTES)
    carried.append(
        CarriedFile(name=program.name, path=program, sha256=sha256, size_bytes=MAX_PROGRAM_BYTES)
    )
    answer = _run(trainings, ranks, repetitions, tuple(carried))
    return answer, (ALIKE,) if alike else ()


def _run(
    trainings: Trainings, ranks: int, repetitions: int, carried: tuple[CarriedFile, ...]
) -> AllReduceSpread:
    prepared = trainings.prepared
    launcher = prepared.launcher(Commit.HEAD, Commit.HEAD)
    first = Path(prepared.request.settings.train.command[0])
    # a launcher such as torchrun starts the interpreter beside it, so `python` on PATH is the same
    python = str(first) if first.name.startswith("python") else "python"
    planned = PlannedRun(
        label=f"all-reduce-{ranks}",
        mode=RunMode.DEFAULT,
        observe=False,
        command=(
            *(python, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), f"{PLACE}/{ALL_REDUCE_PROGRAM.name}"),
            str(repetitions),
        ),
        carried=CarriedCheckpoint(place=PLACE, step=0, files=carried),
    )
    folders = run_folders(prepared.place)
    prepared.aside.put(prepared.place)
    prepared.adapters.files.fresh_folder(prepared.place)
    with prepared.adapters.progress.running(f"{planned.label}: the first gradients, {ranks} ranks"):
        launcher.run(planned, prepared.snapshots[Commit.HEAD], folders)
    # before the gate reads a file: after this no process can change it
    prepared.adapters.clean_up(launcher.isolation)
    prepared.reader.let_read(folders.out, folders.tree)
    return prepared.reader.ask(AllReduceQuestion(out=folders.out))
