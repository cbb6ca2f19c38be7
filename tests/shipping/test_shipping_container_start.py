from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from gate.adapters.account.isolation import ACCOUNTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def start() -> Any:  # noqa: ANN401 - a script by its path, no package
    """The script as a module; its name is too common for a search path."""
    spec = spec_from_file_location("container_start", ROOT / "container" / "start.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_another_python_is_refused_with_its_version(start: Any, version: tuple[int, int]) -> None:  # noqa: ANN401 - as above
    with pytest.raises(start.StartError, match=r"needs 3\.11 to 3\.13"):
        start.refuse_python(version)


def test_the_supported_pythons_are_those_of_the_package(start: Any) -> None:  # noqa: ANN401 - as above
    assert start.PYTHONS == ((3, 11), (3, 14))
    assert 'requires-python = ">=3.11,<3.14"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_a_lock_is_read_from_the_workspace(start: Any, tmp_path: Path) -> None:  # noqa: ANN401 - as above
    (tmp_path / "requirements.txt").write_bytes(b"numpy==2.4.6 --hash=sha256:00\n")
    assert start.locked_file(tmp_path, "requirements.txt").startswith(b"numpy")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", "link", "folder/x", "missing"]
)
def test_a_lock_elsewhere_is_refused(start: Any, tmp_path: Path, name: str) -> None:  # noqa: ANN401 - as above
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").symlink_to("/etc")
    with pytest.raises(start.StartError, match="input requirements: "):
        start.locked_file(tmp_path, name)


def test_a_huge_lock_is_refused(start: Any, tmp_path: Path) -> None:  # noqa: ANN401 - as above
    with (tmp_path / "r.txt").open("wb") as lock:
        lock.truncate(start.MAX_REQUIREMENTS_BYTES + 1)
    with pytest.raises(start.StartError, match="is above 4 MiB"):
        start.locked_file(tmp_path, "r.txt")


def test_pip_gets_no_token_and_no_key(start: Any, tmp_path: Path) -> None:  # noqa: ANN401 - as above
    given = {
        "INPUT_TOKEN": "canary",
        "GITHUB_TOKEN": "canary",
        "ACTIONS_RUNTIME_TOKEN": "canary",
        "https_proxy": "http://proxy:1",
        "PIP_INDEX_URL": "https://mirror.example/simple",
    }
    variables = start.pip_variables(given, tmp_path)
    assert "canary" not in variables.values()
    assert set(variables) == {"https_proxy", "PIP_INDEX_URL", "PATH", "HOME", "LC_ALL"}


def test_what_pip_says_cannot_be_a_workflow_command(start: Any, tmp_path: Path) -> None:  # noqa: ANN401 - as above
    lock = tmp_path / "r.txt"
    lock.write_text("::set-output name=verdict::reproduced ##[error]x\n")
    with pytest.raises(start.StartError) as caught:
        start.install(Path(sys.executable), lock, start.pip_variables({}, tmp_path))
    assert "::" not in str(caught.value)
    assert "##[" not in str(caught.value)


def _answering(folder: Path, script: str) -> Path:
    """A program in the place of the gate's Python, which answers with the base's requirements."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_the_base_commits_packages_are_installed_where_the_lock_differs(
    start: Any,  # noqa: ANN401 - as above
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[object, ...]] = []

    def make(folder: Path, locked: bytes, variables: object, account: int) -> Path:
        del variables
        made.append((folder, locked, account))
        return folder / "python/bin"

    monkeypatch.setattr(start, "training_environment", make)
    words = "-I -m gate.action.base_requirements r.txt"
    asked = _answering(tmp_path, f'test "$*" = "{words}" && printf one')
    folder = start.PLACE / "repro-gate-training-base"
    assert start.base_programs(asked, "r.txt", b"two", {}) == folder / "python/bin"
    assert made == [(folder, b"one", start.BASE_INSTALLER)]
    # the same packages, or none: head's environment is the base's too
    assert start.base_programs(asked, "r.txt", b"one", {}) is None
    assert start.base_programs(_answering(tmp_path, ":"), "r.txt", b"two", {}) is None
    assert len(made) == 1


def test_packages_of_the_base_that_cannot_be_had_are_told(
    start: Any,  # noqa: ANN401 - as above
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    silent = _answering(tmp_path, "echo '::error::x\nthere is no commit' >&2; exit 2")
    assert start.base_programs(silent, "r.txt", b"two", {}) is None

    def refuse(*_: object) -> Path:
        raise start.StartError("-m pip install ended with 1:\n  no such wheel")

    monkeypatch.setattr(start, "training_environment", refuse)
    asked = _answering(tmp_path, "printf one")
    assert start.base_programs(asked, "r.txt", b"two", {}) is None
    title = "::notice title=repro-gate without the base commit's packages::"
    assert capfd.readouterr().out.splitlines() == [
        f"{title}::error::x%0Athere is no commit",
        f"{title}-m pip install ended with 1:%0A  no such wheel",
    ]


def test_no_installer_is_an_account_that_trains(start: Any) -> None:  # noqa: ANN401 - as above
    assert not {start.INSTALLER, start.BASE_INSTALLER} & {*ACCOUNTS}
    assert start.INSTALLER != start.BASE_INSTALLER
