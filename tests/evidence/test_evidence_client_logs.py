"""What a client logged is read or refused: a number that nobody reads is compared by nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from event_files import event, history, log, plain, record

from gate.errors import EvidenceError
from gate.evidence.client_logs import MAX_NAMES
from gate.evidence.tensorboard import tensorboard_series
from gate.evidence.trackio_runs import trackio_metrics
from gate.evidence.wandb_runs import wandb_metrics
from gate.system.files.files import LocalFiles

FILES = LocalFiles()
LINE = b'{"v": 1, "kind": "metric", "run_id": "b", "step": %d, "metrics": {"%s": 0.5}}\n'
Read = Callable[[Path], set[str]]
EVENTS = "events.out.tfevents.1.host"
# the reader; the file of a sound log, the same in a second place, and what each of them holds
CLIENTS: dict[str, tuple[Read, str, str, bytes, bytes]] = {
    "tensorboard": (
        lambda at: {one.name for one in tensorboard_series(FILES, at, "logs", ("*",))},
        f"a/{EVENTS}",
        f"b/{EVENTS}",
        record(event(0, b"loss", plain(0.5))),
        record(event(0, b"acc", plain(0.5))),
    ),
    "wandb": (
        lambda at: {one.name for one in wandb_metrics(FILES, at, "logs", ("*",)).series},
        "offline-run-1-a/run-a.wandb",
        "offline-run-2-b/run-b.wandb",
        log(history(0, loss=0.5)),
        log(history(0, acc=0.5)),
    ),
    "trackio": (
        lambda at: {one.name for one in trackio_metrics(FILES, at, "logs", ("*",)).series},
        "inbox/a/00000000.jsonl",
        "inbox/b/00000000.jsonl",
        LINE % (0, b"loss"),
        LINE % (0, b"acc"),
    ),
}


def written(folder: Path, path: str, data: bytes) -> Path:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)
    return folder / path


@pytest.mark.parametrize("client", CLIENTS)
def test_a_folder_of_too_many_names_hides_no_number(tmp_path: Path, client: str) -> None:
    read, first, second, loss, accuracy = CLIENTS[client]
    written(tmp_path, first, loss)
    assert len(read(tmp_path)) == 1
    beside = written(tmp_path, second, accuracy).parent
    (beside / "0").write_bytes(b"")
    for number in range(1, MAX_NAMES + 1):
        (beside / str(number)).hardlink_to(beside / "0")
    with pytest.raises(EvidenceError, match=r"logs/.* has more than 20,000 entries"):
        read(tmp_path)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_link_to_a_folder_hides_no_number(tmp_path: Path, client: str) -> None:
    read, first, second, loss, accuracy = CLIENTS[client]
    logs = tmp_path / "logs"
    written(logs, first, loss)
    elsewhere = written(tmp_path / "elsewhere", second, accuracy).parent
    (logs / second).parent.symlink_to(elsewhere)
    with pytest.raises(EvidenceError, match=r"is a link that leads out of it|cannot be read"):
        read(logs)


@pytest.mark.parametrize("client", ["tensorboard", "wandb"])
def test_a_link_to_what_is_read_anyway_is_no_concern(tmp_path: Path, client: str) -> None:
    """Such as `latest`, which people make."""
    read, first, second, loss, _ = CLIENTS[client]
    there = written(tmp_path, first, loss).parent
    (tmp_path / second).parent.symlink_to(there.name)
    assert len(read(tmp_path)) == 1


def test_events_in_a_deep_folder_are_read(tmp_path: Path) -> None:
    read, _, _, loss, accuracy = CLIENTS["tensorboard"]
    written(tmp_path, f"top/{EVENTS}", loss)
    written(tmp_path, f"{'deep/' * 30}{EVENTS}", accuracy)
    assert len(read(tmp_path)) == 2


def test_more_files_than_are_read_are_refused(tmp_path: Path) -> None:
    for writer in ("a", "b"):
        whole = written(tmp_path, f"inbox/{writer}/0.jsonl", LINE % (0, writer.encode()))
        for number in range(1, MAX_NAMES // 2 + 1):
            whole.with_name(f"{number}.jsonl").hardlink_to(whole)
    with pytest.raises(EvidenceError, match="logs: more than 20,000 files"):
        CLIENTS["trackio"][0](tmp_path)
