"""Data of the machine: there, missing, closed, a link, a loop, and no file at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from data_bench import DataBench
from each_row import each_row

from gate.data.fetching import machine_path
from gate.errors import DataError
from gate.isolation.restricted_paths import places_without_data


def refused(bench: DataBench, path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        bench.one({"path": str(path), "as": "mini"})
    return caught.value


def test_a_folder_and_a_file_are_taken_where_they_lie(bench: DataBench) -> None:
    folder = bench.root / "mini"
    folder.mkdir()
    (folder / "x.npy").touch()
    found = bench.one({"path": str(folder)})
    assert (found.name, found.source, found.origin) == ("mini", folder.resolve(), str(folder))
    assert bench.one({"path": str(folder / "x.npy")}).source == (folder / "x.npy").resolve()
    assert not bench.cache.exists()


def test_a_missing_path_says_what_a_container_needs(bench: DataBench) -> None:
    error = refused(bench, bench.root / "none" / "x")
    assert error.message == f"data: mini: there is no {bench.root}/none/x"
    assert f"`options: --volume {bench.root}/none/x:{bench.root}/none/x:ro`" in error.hint
    (bench.root / "file").touch()
    assert "there is no" in refused(bench, bench.root / "file" / "x").message


@each_row(
    ("data", "how"),
    [
        ("clone/.git/config", "is inside"),
        ("clone/.git", "is"),
        ("clone", "contains"),
        ("temp/deep/token", "is inside"),
        ("event", "is"),
        ("home/.ssh/id_rsa", "is inside"),
        ("home/.netrc", "is"),
    ],
)
def test_what_is_closed_to_a_training_is_no_data(tmp_path: Path, data: str, how: str) -> None:
    for name in ("clone/.git/config", "temp/deep/token", "event/e.json", "home/.ssh/id_rsa"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "home/.netrc").touch()
    variables = {
        "GITHUB_ACTIONS": "true",
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_EVENT_PATH": str(tmp_path / "event/e.json"),
        "HOME": str(tmp_path / "home"),
    }
    closed = places_without_data(tmp_path / "clone", variables)
    with pytest.raises(DataError) as caught:
        machine_path("mini", tmp_path / data, closed)
    shown = (tmp_path / data).resolve()
    assert caught.value.message.startswith(f"data: mini: {shown} {how} ")
    assert caught.value.message.endswith("which is closed to the training")
    # beside them there may be data
    (tmp_path / "clone/data").mkdir()
    (tmp_path / "home/.cache").mkdir()
    machine_path("mini", tmp_path / "clone/data", closed)
    # no runner: only the logins of a home
    closed = places_without_data(tmp_path / "clone", {"HOME": variables["HOME"]})
    machine_path("mini", tmp_path / "home/.cache", closed)


@pytest.mark.parametrize("path", ["/proc/self/environ", "/sys/kernel", "/"])
def test_what_the_kernel_shows_is_no_data(tmp_path: Path, path: str) -> None:
    with pytest.raises(DataError, match="which is closed to the training"):
        machine_path("mini", Path(path), places_without_data(tmp_path, {}))


def test_a_link_is_refused_with_the_real_path(bench: DataBench) -> None:
    (bench.root / "real").mkdir()
    (bench.root / "link").symlink_to("real")
    error = refused(bench, bench.root / "link")
    assert error.message == f"data: mini: {bench.root}/link is a link"
    assert error.hint == f"Write the real path: `path: {bench.root.resolve()}/real`."


@pytest.mark.parametrize("target", ["link", "nowhere"])
def test_a_link_in_a_circle_or_to_nothing_is_told(bench: DataBench, target: str) -> None:
    (bench.root / "link").symlink_to(target)
    error = refused(bench, bench.root / "link")
    assert error.message == f"data: mini: {bench.root}/link is a link"
    assert "where nothing is, or in a circle" in error.hint


def test_a_path_through_a_circle_of_links_is_one_error(bench: DataBench) -> None:
    (bench.root / "link").symlink_to("link")
    error = refused(bench, bench.root / "link" / "x")
    assert "cannot be read" in error.message
    assert error.hint


def test_a_pipe_is_no_data(bench: DataBench) -> None:
    os.mkfifo(bench.root / "pipe")
    error = refused(bench, bench.root / "pipe")
    assert error.message == f"data: mini: {bench.root}/pipe is neither a file nor a folder"


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become another account")
def test_a_closed_folder_is_one_error_for_another_account(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from gate.data.fetching import machine_path\n"
        "from gate.errors import DataError\n"
        "for path in (Path(sys.argv[1]).parents, ):\n"
        "    [os.chmod(p, 0o755) for p in path if str(p).startswith('/tmp/')]\n"
        "os.setuid(65534)\n"
        "try:\n"
        "    machine_path('mini', Path(sys.argv[1]))\n"
        "except DataError as error:\n"
        "    print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "closed")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.startswith(
        f"data: mini: the gate's account may not read {tmp_path}/closed\nhint: Let it: "
    )
