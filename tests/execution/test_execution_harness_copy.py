"""The harness beside a run: all of it, nothing else; its byte-code needs no compiling there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gate.adapters.files.files import LocalFiles
from gate.errors import StorageError
from gate.execution.harness_copy import HARNESS, _copy_package, made_harness

FILES = LocalFiles()
IMPORTING = """
import sys
sys.path.insert(0, sys.argv[1])
from repro_gate_harness import settings
print(settings.__cached__)
print(next(one for one in vars(settings).values() if hasattr(one, "__code__")).__code__.co_filename)
"""


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("harness")
    made = made_harness(FILES, root / "made")
    assert not (root / "made").exists()
    made.put(FILES, root / "placed")
    return root / "placed"


def test_it_travels_without_the_gate(placed: Path) -> None:
    names = sorted(path.name for path in placed.iterdir())
    assert names == ["__pycache__", "repro_gate_harness", "sitecustomize.py"]


def test_it_travels_with_its_subpackages(placed: Path) -> None:
    package = placed / "repro_gate_harness"
    copied = {path.relative_to(package) for path in package.rglob("*.py")}
    modules = {path.relative_to(HARNESS) for path in HARNESS.rglob("*.py")}
    assert copied == {path for path in modules if path.parts[0] != "startup"}
    assert Path("recording", "recorder.py") in copied
    assert {path.stat().st_mode & 0o777 for path in package.rglob("*.py")} == {0o644}
    assert {path.parent.stat().st_mode & 0o777 for path in package.rglob("*.py")} == {0o755}


def test_every_module_has_byte_code(placed: Path) -> None:
    compiled = {path.name.partition(".")[0] for path in placed.rglob("*.pyc")}
    assert compiled == {path.stem for path in placed.rglob("*.py")}


def test_byte_code_that_was_made_elsewhere_names_the_files_that_are_there(placed: Path) -> None:
    settings = placed / "repro_gate_harness" / "settings.py"
    before = settings.read_bytes()
    # the byte-code is what runs: another text behind it is not looked at
    settings.write_text("raise SystemExit('compiled here')")
    command = (sys.executable, "-I", "-B", "-c", IMPORTING, str(placed))
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    settings.write_bytes(before)
    cached, named = told.stdout.splitlines()
    assert Path(cached).parent == settings.parent / "__pycache__"
    assert named == str(settings)


def test_copying_a_package_follows_no_link(tmp_path: Path) -> None:
    elsewhere, package = tmp_path / "elsewhere", tmp_path / "package"
    for folder in (elsewhere, package / "inner"):
        folder.mkdir(parents=True)
        (folder / "module.py").write_text("pass")
    (package / "linked").symlink_to(elsewhere)
    _copy_package(FILES, package, tmp_path / "copy")
    copied = [path.name for path in (tmp_path / "copy").iterdir()]
    assert copied == ["inner"]
    (package / "linked.py").symlink_to(elsewhere / "module.py")
    with pytest.raises(StorageError):
        _copy_package(FILES, package, tmp_path / "copy")
