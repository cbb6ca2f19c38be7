"""The harness beside a run: all of it in few files; its byte-code needs no compiling there."""

from __future__ import annotations

import marshal
import subprocess
import sys
from pathlib import Path

import pytest

from gate.errors import StorageError
from gate.system.files.files import LocalFiles
from gate.training.run_folders import HARNESS, _bundle, made_harness

FILES = LocalFiles()
IMPORTING = """
import sys
sys.path.insert(0, sys.argv[1])
from repro_gate_harness.lifecycle import start
print(start.__file__)
print(start.ImportHook.install.__code__.co_filename)
"""
FAILING = """
import sys, traceback
sys.path.insert(0, sys.argv[1])
from repro_gate_harness.lifecycle.start import ImportHook
try: ImportHook(None)
except TypeError: traceback.print_exc()
"""
CACHED = f"__pycache__/settings.{sys.implementation.cache_tag}.pyc"


def imported(folder: Path, source: str = IMPORTING) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-I", "-c", source, str(folder))
    return subprocess.run(command, capture_output=True, text=True, check=False)


def unpacked(bundle: bytes) -> dict[str, bytes]:
    found = marshal.loads(bundle)  # noqa: S302 - made here
    assert isinstance(found, dict)
    return found


def modules_in(folder: Path) -> dict[str, bytes]:
    return unpacked((folder / "repro_gate_harness" / "modules.bundle").read_bytes())


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    made_harness(FILES).put(FILES, tmp_path / "placed")
    return tmp_path / "placed"


def test_a_run_has_five_files_and_four_folders(placed: Path) -> None:
    tag = sys.implementation.cache_tag
    files = {str(path.relative_to(placed)) for path in placed.rglob("*") if path.is_file()}
    assert files == {
        "sitecustomize.py",
        f"__pycache__/sitecustomize.{tag}.pyc",
        "repro_gate_harness/__init__.py",
        f"repro_gate_harness/__pycache__/__init__.{tag}.pyc",
        "repro_gate_harness/modules.bundle",
    }
    assert {path.stat().st_mode & 0o777 for path in placed.rglob("*") if path.is_file()} == {0o644}
    assert {path.stat().st_mode & 0o777 for path in placed.rglob("*") if path.is_dir()} == {0o755}


def test_it_travels_with_its_subpackages_and_their_byte_code(placed: Path) -> None:
    names = set(modules_in(placed))
    modules = {path.relative_to(HARNESS) for path in HARNESS.rglob("*.py")} - {Path("__init__.py")}
    wanted = {path for path in modules if path.parts[0] != "startup"}
    assert {Path(name) for name in names if name.endswith(".py")} == wanted
    assert "recording/recorder.py" in names
    tag = sys.implementation.cache_tag
    cached = {path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc" for path in wanted}
    assert {Path(name) for name in names if name.endswith(".pyc")} == cached


def test_its_code_names_the_files_beside_the_bundle(placed: Path) -> None:
    """By them the harness tells its own lines, wherever its byte-code was made."""
    file = str(placed / "repro_gate_harness" / "lifecycle" / "start.py")
    assert imported(placed).stdout.splitlines() == [file, file]


def test_a_traceback_shows_the_line(placed: Path) -> None:
    told = imported(placed, FAILING).stderr
    assert f'File "{placed}/repro_gate_harness/lifecycle/start.py", line ' in told
    assert "for callback in reversed(callbacks)" in told


def test_byte_code_is_what_runs_and_the_text_is_for_another_python(placed: Path) -> None:
    modules = modules_in(placed)
    bundle = placed / "repro_gate_harness" / "modules.bundle"
    ask = "import sys; sys.path.insert(0, sys.argv[1]); import repro_gate_harness.settings"
    bundle.write_bytes(marshal.dumps(modules | {"settings.py": b"raise SystemExit(7)"}, 2))
    assert imported(placed, ask).returncode == 0
    foreign = modules[CACHED][:2] + b"??" + modules[CACHED][4:]
    bundle.write_bytes(marshal.dumps(modules | {CACHED: foreign}, 2))
    assert imported(placed, ask).returncode == 0
    del modules[CACHED]
    bundle.write_bytes(marshal.dumps(modules | {"settings.py": b"raise SystemExit(7)"}, 2))
    assert imported(placed, ask).returncode == 7


def test_no_process_leaves_anything_beside_it(placed: Path) -> None:
    modules = {name: text for name, text in modules_in(placed).items() if name.endswith(".py")}
    bundle = placed / "repro_gate_harness" / "modules.bundle"
    bundle.write_bytes(marshal.dumps(modules, 2))
    before = sorted(placed.rglob("*"))
    assert imported(placed).returncode == 0
    assert sorted(placed.rglob("*")) == before


def test_a_module_that_is_not_there_is_missing_as_any_other(placed: Path) -> None:
    ask = "import sys; sys.path.insert(0, sys.argv[1]); import repro_gate_harness.nothing"
    assert "No module named 'repro_gate_harness.nothing'" in imported(placed, ask).stderr


def test_a_bundle_follows_no_link(tmp_path: Path) -> None:
    elsewhere, package = tmp_path / "elsewhere", tmp_path / "package"
    for folder in (elsewhere, package / "inner"):
        folder.mkdir(parents=True)
        (folder / "module.py").write_text("pass")
    (package / "linked").symlink_to(elsewhere)
    names = {name for name in unpacked(_bundle(FILES, package)) if name.endswith(".py")}
    assert names == {"inner/module.py"}
    (package / "linked.py").symlink_to(elsewhere / "module.py")
    with pytest.raises(StorageError):
        _bundle(FILES, package)
