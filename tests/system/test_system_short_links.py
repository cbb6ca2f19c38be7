"""A short path to a run's temporary folder: always the same, never another account's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gate.system.files.files import LocalFiles, name_for


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / ("d" * 100) / "tmp"
    folder.mkdir(parents=True)
    yield folder
    name_for(folder).unlink(missing_ok=True)


def test_a_socket_fits_below_the_short_name_of_a_deep_folder(deep: Path) -> None:
    link = LocalFiles().short_link(deep, for_others=False)
    assert link is not None
    name = "ray/session_2026-11-24_07-00-00_000000_1234567/sockets/plasma_store"
    (link / name).parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(link / name))
    assert (deep / name).exists()
    assert LocalFiles().short_link(deep, for_others=False) == link


def test_a_link_that_a_run_led_elsewhere_leads_back_for_the_next(deep: Path) -> None:
    link = name_for(deep)
    link.symlink_to("/etc")
    assert LocalFiles().short_link(deep, for_others=False) == link
    assert link.readlink() == deep


def test_what_is_no_link_is_neither_used_nor_removed(deep: Path) -> None:
    name_for(deep).touch()
    assert LocalFiles().short_link(deep, for_others=False) is None
    LocalFiles().drop_short_link(deep)
    assert name_for(deep).is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another account's file")
def test_another_accounts_link_is_neither_used_nor_removed(deep: Path) -> None:
    link = name_for(deep)
    link.symlink_to(deep)
    os.lchown(link, 12345, 12345)
    assert LocalFiles().short_link(deep, for_others=False) is None
    LocalFiles().drop_short_link(deep)
    assert link.is_symlink()


def test_the_link_goes_and_the_folder_stays(deep: Path) -> None:
    link = LocalFiles().short_link(deep, for_others=False)
    LocalFiles().drop_short_link(deep)
    assert link is not None
    assert not link.is_symlink()
    assert deep.is_dir()


def test_a_short_folder_needs_no_shorter_name() -> None:
    assert LocalFiles().short_link(Path("/srv/x"), for_others=False) is None
