"""Nothing is written or removed through a link of a checkout; a machine's own links still serve."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from gate.errors import GateError, StorageError
from gate.system.files import writing
from gate.system.files.files import LocalFiles
from gate.system.git.export import TreeWriter

FILES = LocalFiles()
Change = Callable[[Path, Path], object]


def _held(path: Path, lock: Callable[[Path], object]) -> None:
    with ExitStack() as ends:
        ends.enter_context(lock(path))  # type: ignore[arg-type] # both are context managers


# Each way in which the program changes something below a folder, and what it is given: the folder,
# and a file that lies elsewhere.
CHANGES: dict[str, Change] = {
    "write_bytes": lambda folder, _: FILES.write_bytes(folder / "kept", b"other"),
    "write_new": lambda folder, _: FILES.write_new(folder / "new", b"other"),
    "append_bytes": lambda folder, _: FILES.append_bytes(folder / "kept", b"other"),
    "fresh_folder": lambda folder, _: FILES.fresh_folder(folder / "below"),
    "remove_tree": lambda folder, _: FILES.remove_tree(folder / "below"),
    "remove_file": lambda folder, _: FILES.remove_tree(folder / "kept"),
    "copy_file": lambda folder, file: FILES.copy_file(file, folder / "new", max_bytes=99),
    "copy_tree": lambda folder, file: FILES.copy_tree(file.parent, folder / "new"),
    "keep_only": lambda folder, _: FILES.keep_only(folder / "below", lambda _: False),
    "link": lambda folder, file: FILES.link(folder / "new", file),
    "move_in": lambda folder, file: FILES.move_file(file, folder / "new"),
    "move_out": lambda folder, file: FILES.move_file(folder / "kept", file),
    "set_aside": lambda folder, file: FILES.set_aside(folder / "below", file.parent / "aside"),
    "give_to": lambda folder, _: FILES.give_to(folder / "below", os.getuid(), os.getgid()),
    "let_read": lambda folder, _: FILES.let_read(folder / "below"),
    "let_group_read": lambda folder, _: FILES.let_read(folder / "below", gid=os.getgid()),
    "held_folder": lambda folder, _: _held(folder, FILES.held_folder),
    "one_writer": lambda folder, _: _held(folder / "new", FILES.one_writer),
    "export": lambda folder, _: TreeWriter(folder / "new").file("a/b", "100644", (b"x",)),
    "write_whole": lambda folder, _: writing.write_whole(folder / "kept", b"other"),
    "remove": lambda folder, _: writing.remove(folder / "kept"),
    "second_name": lambda folder, file: writing.second_name(file, folder / "new"),
    "set_mode": lambda folder, _: writing.set_mode(folder / "kept", 0o777),
    "set_time": lambda folder, _: writing.set_time_to_now(folder / "kept"),
}
PORT = {
    *("write_bytes", "write_new", "append_bytes", "replacing", "held_folder", "one_writer"),
    *("fresh_folder", "keep_only", "copy_tree", "copy_file", "link", "move_file"),
    *("set_aside", "remove_tree", "give_to", "let_read"),
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone, with something of somebody's beside it."""
    top = tmp_path / "clone"
    (top / ".git").mkdir(parents=True)
    _fill(tmp_path / "home")
    _fill(top / "inside")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("of the gate")
    return top


def _fill(folder: Path) -> None:
    (folder / "below").mkdir(parents=True)
    for path in (folder / "kept", folder / "below" / "kept"):
        path.write_text("mine")
        path.chmod(0o640)
        os.utime(path, (1000, 1000))


def _state(folder: Path) -> dict[str, tuple[int, float, bytes]]:
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_mtime,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("way", ["out", "out/deep", "deep/out"])
@pytest.mark.parametrize("inside", [False, True])
def test_no_change_goes_through_a_link_of_the_checkout(
    checkout: Path, *, inside: bool, way: str
) -> None:
    """Inside and outside alike: what it leads to is not what was named."""
    real = checkout / "inside" if inside else checkout.parent / "home"
    if way == "out/deep":
        _fill(real / "deep")
    link = checkout / ("deep/out" if way == "deep/out" else "out")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(real)
    before = _state(real)
    for name, change in CHANGES.items():
        with pytest.raises(GateError) as caught:
            change(checkout / way, checkout.parent / "source" / "file")
        shown = link.relative_to(checkout)
        assert caught.value.message.startswith(f"{shown} is a link in the checkout "), name
        assert caught.value.hint == (
            "Remove the link from the commit, or name the folder that it leads to."
        )
        assert _state(real) == before, name


def test_every_way_of_the_port_is_among_them() -> None:
    tried = set(CHANGES) | {"replacing", "move_file"}
    assert tried >= PORT
    reading = {
        *("read_bytes", "open_binary", "exists", "is_folder", "list_names", "owner"),
        "link_target",
        *("refuse_links", "refuse_brought_link", "tree_digest"),
        "byte_code",
        # in /tmp, beside every checkout
        *("short_link", "drop_short_link"),
    }
    assert {name for name in vars(LocalFiles) if not name.startswith("_")} == PORT | reading


def _all_go_well(folder: Path, source: Path) -> None:
    for change in CHANGES.values():
        for name in ("new", "kept", "below"):
            FILES.remove_tree(folder / name)
        FILES.remove_tree(source.parent / "aside")
        _fill(folder)
        source.write_text("of the gate")
        change(folder, source)


@pytest.mark.parametrize("place", ["clone/out", "elsewhere/out", "clone/../elsewhere/out"])
def test_a_link_above_every_checkout_is_the_machines_own(checkout: Path, place: str) -> None:
    """As `/var` is on some machines, and a home on another disk."""
    top = checkout.parent
    behind = top.parent / f"{top.name}-behind"
    behind.symlink_to(top)
    try:
        (top / "elsewhere").mkdir()
        _all_go_well(behind / place, behind / "source" / "file")
        assert (top / place).resolve().joinpath("kept").exists()
    finally:
        behind.unlink()


def test_a_link_that_leads_into_a_checkout_may_be_used_and_one_in_it_not(checkout: Path) -> None:
    short = checkout.parent / "short"
    short.symlink_to("clone")
    writing.write_whole(short / "file", b"x")
    assert (checkout / "file").read_bytes() == b"x"
    (checkout / "out").symlink_to("../home")
    with pytest.raises(StorageError, match="out is a link in the checkout"):
        FILES.write_bytes(short / "out" / "kept", b"x")
    # and the way out of it again, by the folder above
    FILES.write_bytes(short / ".." / "home" / "new", b"x")
    assert (checkout.parent / "home" / "new").exists()


def test_links_that_lead_in_a_circle_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StorageError, match=r"writing .*: Too many levels of symbolic links"):
        FILES.write_bytes(tmp_path / "a" / "file", b"x")


def test_a_link_itself_is_removed_and_replaced_and_what_it_leads_to_stays(checkout: Path) -> None:
    home = checkout.parent / "home"
    changes: tuple[Callable[[Path], None], ...] = (
        FILES.remove_tree,
        lambda path: FILES.write_bytes(path, b"other"),
    )
    for change in changes:
        with suppress(FileNotFoundError):
            (checkout / "link").unlink()
        (checkout / "link").symlink_to(home / "kept")
        change(checkout / "link")
        assert not (checkout / "link").is_symlink()
        assert (home / "kept").read_text() == "mine"


def test_what_is_put_in_the_way_while_it_is_walked_is_not_followed(checkout: Path) -> None:
    """The folder that was entered is written to, whatever has its name now."""
    (checkout / "out").mkdir()
    with writing.holder(checkout / "out" / "file") as (folder, name):
        (checkout / "out").rename(checkout / "moved")
        (checkout / "out").symlink_to(checkout.parent / "home")
        with writing.new_file(name, 0o644, within=folder) as descriptor:
            os.write(descriptor, b"x")
    assert (checkout / "moved" / "file").read_bytes() == b"x"
    assert not (checkout.parent / "home" / "file").exists()
