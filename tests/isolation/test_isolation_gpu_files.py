"""Who may open a GPU's device files, and who is given their group; files play the devices."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gate.isolation.account_choice import gpu_file_groups, make_device_files

VIDEO, RENDER = 60944, 60945


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    (folder / "nvidia-caps").mkdir(parents=True)
    return folder


def device(path: Path, mode: int, gid: int) -> None:
    path.touch()
    os.chown(path, 0, gid)
    path.chmod(mode)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("name", "mode", "gid", "given"),
    [
        ("nvidia0", 0o660, VIDEO, (VIDEO,)),
        ("nvidiactl", 0o660, VIDEO, (VIDEO,)),
        ("nvidia-uvm", 0o660, RENDER, (RENDER,)),
        ("nvidia0", 0o666, VIDEO, ()),
        ("nvidia0", 0o600, VIDEO, ()),
        ("nvidia0", 0o640, VIDEO, ()),
        ("nvidia0", 0o660, 0, ()),
        ("nvidia-caps/nvidia-cap2", 0o440, VIDEO, (VIDEO,)),
        ("nvidia-caps/nvidia-cap2", 0o444, VIDEO, ()),
        ("nvidia-modeset", 0o660, VIDEO, ()),
        ("nvidia0-copy", 0o660, VIDEO, ()),
        ("dri", 0o660, VIDEO, ()),
    ],
)
def test_only_a_group_that_a_gpu_cannot_do_without_is_given(
    devices: Path, name: str, mode: int, gid: int, given: tuple[int, ...]
) -> None:
    device(devices / name, mode, gid)
    assert gpu_file_groups(devices) == given


@pytest.mark.usefixtures("root")
def test_several_groups_are_given_in_order(devices: Path) -> None:
    device(devices / "nvidia0", 0o660, RENDER)
    device(devices / "nvidiactl", 0o660, VIDEO)
    assert gpu_file_groups(devices) == (VIDEO, RENDER)


@pytest.mark.usefixtures("root")
def test_a_group_that_opens_more_than_a_gpu_is_never_given(devices: Path, tmp_path: Path) -> None:
    device(devices / "nvidia0", 0o660, VIDEO)
    socket = tmp_path / "engine.sock"
    device(socket, 0o660, VIDEO)
    assert gpu_file_groups(devices, never=(socket,)) == ()
    assert gpu_file_groups(devices, never=(), socket=str(socket)) == ()
    assert gpu_file_groups(devices, never=(tmp_path / "absent",)) == (VIDEO,)


def test_a_machine_without_devices_gives_none(tmp_path: Path) -> None:
    assert gpu_file_groups(tmp_path / "absent") == ()


def maker_of(folder: Path) -> Path:
    """A program that makes what it was told to, as nvidia-modprobe does."""
    maker = folder / "nvidia-modprobe"
    maker.write_text(f'#!/bin/sh\nenv >{folder}/env\necho "$@" >{folder}/dev/nvidia-uvm\n')
    maker.chmod(0o755)
    return maker


@pytest.mark.usefixtures("root")
def test_a_missing_file_is_made_by_the_drivers_own_program(
    devices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "canary")
    (devices / "nvidiactl").touch()
    assert make_device_files(devices, maker_of(tmp_path))
    assert (devices / "nvidia-uvm").read_text() == "-c 0 -u\n"
    assert "canary" not in (tmp_path / "env").read_text()


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("there", [(), ("nvidiactl", "nvidia-uvm")])
def test_nothing_is_called_without_a_driver_or_a_need(
    devices: Path, tmp_path: Path, there: tuple[str, ...]
) -> None:
    for name in there:
        (devices / name).touch()
    assert not make_device_files(devices, maker_of(tmp_path))


@pytest.mark.usefixtures("root")
def test_a_program_that_fails_is_no_fault(devices: Path, tmp_path: Path) -> None:
    (devices / "nvidiactl").touch()
    broken = tmp_path / "broken"
    broken.write_text("no program")
    broken.chmod(stat.S_IRWXU)
    assert make_device_files(devices, broken)
    assert not make_device_files(devices, tmp_path / "absent")
