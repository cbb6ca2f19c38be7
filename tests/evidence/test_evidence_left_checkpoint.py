"""What a killed run leaves is complete, or it is not: every cut of a file is seen."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import StorageError
from gate.evidence.left_checkpoint import look_at_checkpoint
from gate.evidence.observations import KilledSave, KillFacts, LeftBy
from gate.evidence.resume_evidence import CheckpointLook, left_by_kill
from gate.settings.variations import KillPoint
from gate.system.files.files import LocalFiles

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
FILES = LocalFiles()
PLACE = "out/last.pt"


def _bytes(*parts: str, zipped: bool = True) -> bytes:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 4}
    buffer = io.BytesIO()
    kept = {name: whole[name] for name in parts or whole}
    torch.save(kept, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


WHOLE, LEGACY, WEIGHTS = _bytes(), _bytes(zipped=False), _bytes("model")
Left = Callable[..., CheckpointLook]


@pytest.fixture
def left(tmp_path: Path) -> Left:
    """What is seen where a run left these files, and told of those beside the checkpoint."""

    def look(
        files: dict[str, bytes],
        *beside: str,
        whole: CheckpointLook | None = None,
        inside: str = "",
    ) -> CheckpointLook:
        tree, out = tmp_path / "tree", tmp_path / "told"
        out.mkdir(exist_ok=True)
        for name, data in files.items():
            path = tree / "out" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        told = _told(beside=beside, inside=inside)
        (out / "kill-r0-7.json").write_text(json.dumps(told), "ascii")
        return look_at_checkpoint(FILES, out, tree, PLACE, whole)

    return look


def _told(**changes: object) -> dict[str, object]:
    about = {"point": "middle", "step": 4, "path": PLACE, "file": "train.py", "line": 9}
    sizes = {"size_bytes": 100, "byte": 50, "had_one": True, "beside": (), "why": ""}
    return {"pid": 7, "rank": 0, **about, **sizes, **changes}


@pytest.mark.parametrize("data", [WHOLE, LEGACY], ids=["zip", "legacy"])
def test_no_beginning_of_a_file_is_complete(left: Left, data: bytes) -> None:
    complete = left({"last.pt": data})
    assert (complete.problem, complete.parts) == ("", ("model", "optimizer"))

    @given(st.integers(0, len(data) - 1))
    def cut(length: int) -> None:
        assert left({"last.pt": data[:length]}, whole=complete).problem

    cut()


def test_a_byte_that_is_another_is_seen_by_its_checksum(left: Left) -> None:
    place = WHOLE.index(b"data/0") + 200
    damaged = WHOLE[:place] + bytes([WHOLE[place] ^ 1]) + WHOLE[place + 1 :]
    assert left({"last.pt": damaged}).problem


def test_only_a_complete_one_of_the_same_parts_counts_as_an_older_one(left: Left) -> None:
    whole = left({"last.pt": WHOLE})
    for name, data, found in (
        ("weights.pt", WEIGHTS, ""),
        ("older.pt", WHOLE[:-1], ""),
        ("older.pt", WHOLE, "older.pt"),
    ):
        look = left({"last.pt": WHOLE[:9], name: data}, name, whole=whole)
        assert (bool(look.problem), look.beside) == (True, found)
    # nobody looks for one where the checkpoint is complete, or outside of its folder
    assert left({"last.pt": WHOLE}, "older.pt", whole=whole).beside == ""
    look = left({"last.pt": b"", "../secret.pt": WHOLE}, "../secret.pt", whole=whole)
    assert look.beside == ""


def test_in_a_folder_every_file_has_to_be_what_it_is_in_a_complete_one(left: Left) -> None:
    files = {f"last.pt/{name}.pt": _bytes(name) for name in ("model", "optimizer")}
    whole = left(files | {"last.pt/notes.bin": b"\0any"})
    assert (whole.problem, len(whole.unread)) == ("", 1)
    look = left({"last.pt/optimizer.pt": b"P"}, whole=whole)
    assert look.problem == "out/last.pt: lacks the optimizer"
    torn = left(
        {"last.pt/optimizer.pt": _bytes("optimizer"), "last.pt/random.pt": b"P"}, whole=whole
    )
    assert torn.problem == "out/last.pt: random is cut short"


def test_a_cut_file_of_a_name_that_no_complete_one_has_is_left_over(
    left: Left, tmp_path: Path
) -> None:
    folder = tmp_path / "tree" / "out" / "last.pt"
    whole = left({"last.pt/rank-0.pt": WHOLE, "last.pt/rank-1.pt": WHOLE})
    assert whole.files == ("rank-0.pt", "rank-1.pt")
    for name in ("rank-0.pt.part", "step-2/rank-0.pt"):
        for cut in (b"", WHOLE[:1], WHOLE[:-1]):
            look = left({f"last.pt/{name}": cut}, whole=whole, inside=name)
            assert (look.problem, look.unsure, look.in_place) == ("", "", False)
            # another file than the one that is known to be cut
            assert not cut or left({}, whole=whole, inside="rank-9.pt").problem
            (folder / name).unlink()
    torn = left({"last.pt/rank-1.pt": WHOLE[:-1]}, whole=whole, inside="rank-1.pt")
    assert torn.problem
    assert torn.in_place
    # of two ranks' checkpoints one is gone, and the other one is no whole checkpoint
    (folder / "rank-1.pt").unlink()
    look = left({"last.pt/step-2/rank-1.pt": b"P"}, whole=whole, inside="step-2/rank-1.pt")
    gone = "out/last.pt/rank-1.pt, which a complete one has, was removed before the save"
    assert (look.problem, look.unsure) == ("", gone)
    kill = left_by_kill(KillPoint.MIDDLE, look, "")
    assert (kill.left, kill.why) == (LeftBy.NOT_CHECKED, gone)


def test_a_link_is_never_followed(left: Left, tmp_path: Path) -> None:
    whole = left({"secret.pt": WHOLE})
    (tmp_path / "tree" / "out" / "old.pt").symlink_to("secret.pt")
    look = left({"last.pt": b""}, "old.pt", whole=whole)
    assert (bool(look.problem), look.beside) == (True, "")
    (tmp_path / "tree" / "out" / "last.pt").unlink()
    (tmp_path / "tree" / "out" / "last.pt").symlink_to("secret.pt")
    with pytest.raises(StorageError):
        left({}, whole=whole)


def test_a_file_of_a_hundred_gibibytes_is_not_read(left: Left, tmp_path: Path) -> None:
    whole = left({"last.pt": WHOLE, "old.pt": b"PK", "older.pt": WHOLE})
    for name in ("last.pt", "old.pt"):
        # a sparse one takes no room
        os.truncate(tmp_path / "tree" / "out" / name, 100 * 1024**3)
    look = left({}, "old.pt", "older.pt", whole=whole)
    assert "cannot be read" in look.problem
    assert look.beside == "older.pt"


def test_a_rank_that_was_killed_is_told_of_before_one_that_was_not(
    left: Left, tmp_path: Path
) -> None:
    left({"last.pt": WHOLE})
    (tmp_path / "told" / "kill-r0-7.json").write_text(json.dumps(_told(why="ended\x1b")))
    other = json.dumps(_told(pid=8, rank=1, line=12))
    (tmp_path / "told" / "kill-r1-8.json").write_text(other)
    told = left_told(tmp_path)
    assert told.kill is not None
    assert told.kill.line == 12
    (tmp_path / "told" / "kill-r1-8.json").unlink()
    alone = left_told(tmp_path).kill
    assert alone is not None
    assert "\x1b" not in alone.why


def left_told(tmp_path: Path) -> CheckpointLook:
    return look_at_checkpoint(FILES, tmp_path / "told", tmp_path / "tree", PLACE, None)


TOLD = KillFacts(
    point=KillPoint.MIDDLE,
    step=4,
    path=PLACE,
    file="train.py",
    line=9,
    size_bytes=100,
    byte=50,
    had_one=True,
)
LOST = TOLD.model_copy(update={"had_one": False})


@pytest.mark.parametrize(
    ("look", "state"),
    [
        (CheckpointLook(kill=TOLD), LeftBy.COMPLETE),
        (CheckpointLook(kill=TOLD, problem="cut", beside="old.pt"), LeftBy.BESIDE),
        (CheckpointLook(kill=TOLD, absent=True, beside="old.pt"), LeftBy.BESIDE),
        (CheckpointLook(kill=TOLD, problem="cut"), LeftBy.TORN),
        (CheckpointLook(kill=TOLD, absent=True), LeftBy.LOST),
        (CheckpointLook(kill=LOST, absent=True), LeftBy.NOTHING_YET),
        (CheckpointLook(kill=TOLD.model_copy(update={"why": "late"})), LeftBy.NOT_CHECKED),
        (CheckpointLook(), LeftBy.NOT_CHECKED),
    ],
)
def test_what_is_left_says_how_it_is_judged(look: CheckpointLook, state: LeftBy) -> None:
    kill = left_by_kill(KillPoint.MIDDLE, look, "")
    assert kill.left is state
    assert not (kill.is_good and kill.is_bad)
    # nothing passes that was not killed
    assert not kill.is_good or (look.kill is not None and not look.kill.why)


def test_a_run_that_told_nothing_says_how_it_ended() -> None:
    kill = left_by_kill(KillPoint.FIRST, CheckpointLook(), "run killed-first-byte: timed out")
    assert kill == KilledSave(
        point=KillPoint.FIRST,
        left=LeftBy.NOT_CHECKED,
        why="the save could not be interrupted: run killed-first-byte: timed out",
    )
