"""Requirements of both commits: which bytes are read, and how a fault reaches the gate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
from abilities import gate_python, why_not
from each_row import each_row
from git_workshop import Repository
from wheel_index import WheelIndex, sha256_of, wheel

from gate.action.training_packages import (
    BASE,
    FAULT_FILE,
    FAULT_VARIABLE,
    HEAD,
    base_requirements,
    head_requirements,
    raise_start_fault,
)
from gate.errors import RepositoryError, SettingsError, StorageError
from gate.evidence.lock_files import MAX_REQUIREMENTS_BYTES
from gate.isolation.modes import IsolationMode
from gate.system.files.files import LocalFiles

ROOT = Path(__file__).resolve().parents[2]

NAME = "requirements.lock"


def _variables(project: Repository, folder: Path, base: str, kind: str) -> dict[str, str]:
    repository = {"full_name": "o/model"}
    head = {"sha": project.git("rev-parse", "HEAD"), "repo": repository}
    event = {
        "pull_request": {
            "number": 7,
            "head": head,
            "base": {"sha": base, "ref": "main", "repo": repository},
        },
        "merge_group": {"base_sha": base, "base_ref": "refs/heads/main"},
    }
    (folder / "event.json").write_text(json.dumps(event))
    return {
        "GITHUB_EVENT_NAME": kind,
        "GITHUB_EVENT_PATH": str(folder / "event.json"),
        "GITHUB_REPOSITORY": "o/model",
        "GITHUB_SHA": head["sha"],  # type: ignore[dict-item] # the hash
        "GITHUB_WORKSPACE": str(project.path),
    }


@pytest.fixture
def bumped(tmp_path: Path) -> tuple[Repository, str]:
    """A project whose last commit changes the lock, and the commit before."""
    project = Repository(tmp_path / "project")
    project.write(NAME, "one")
    base = project.commit()
    project.write(NAME, "two")
    project.commit()
    return project, base


@pytest.mark.parametrize("kind", ["pull_request", "merge_group"])
def test_the_base_commits_version_is_written(
    bumped: tuple[Repository, str], tmp_path: Path, kind: str
) -> None:
    project, base = bumped
    variables = _variables(project, tmp_path, base, kind)
    assert base_requirements(NAME, variables) == b"one"
    assert base_requirements("none.lock", variables) == b""


def test_a_push_has_no_base(bumped: tuple[Repository, str], tmp_path: Path) -> None:
    project, base = bumped
    assert base_requirements(NAME, _variables(project, tmp_path, base, "push")) == b""


def test_what_cannot_be_read_is_said(bumped: tuple[Repository, str], tmp_path: Path) -> None:
    project, _ = bumped
    with pytest.raises(RepositoryError, match="there is no commit"):
        base_requirements(NAME, _variables(project, tmp_path, "f" * 40, "pull_request"))
    with pytest.raises(SettingsError, match="not supported"):
        base_requirements(NAME, _variables(project, tmp_path, "f" * 40, "issues"))


def test_a_lock_is_read_from_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/r.txt").write_bytes(b"numpy")
    assert head_requirements("locks/r.txt", tmp_path) == b"numpy"


@each_row(
    ("name", "said"),
    [
        ("/etc/passwd", "is not a path inside the workspace"),
        ("../x", "is not a path inside the workspace"),
        ("a/../../x", "is not a path inside the workspace"),
        ("", "is not a path inside the workspace"),
        ("missing", "is not in the workspace"),
        ("link", "link"),
        ("folder/passwd", "link"),
        ("pipe", "is no regular file|not a regular file"),
    ],
)
def test_a_lock_elsewhere_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((SettingsError, StorageError), match=said):
        head_requirements(name, tmp_path)


def test_a_huge_lock_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "r.txt").open("wb") as lock:
        lock.truncate(MAX_REQUIREMENTS_BYTES + 1)
    with pytest.raises(StorageError, match="larger than"):
        head_requirements("r.txt", tmp_path)


def test_what_hinders_the_installation_is_a_fault_of_the_gate(tmp_path: Path) -> None:
    """Left in a file by the process that installs, raised where it is reported."""
    given = {**os.environ, "GITHUB_WORKSPACE": str(tmp_path)}
    words = (sys.executable, "-m", "gate.action.training_packages", "/x", str(tmp_path))
    ended = subprocess.run(words, env=given, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, b"")
    with pytest.raises(SettingsError, match="input requirements") as caught:
        raise_start_fault({FAULT_VARIABLE: str(tmp_path / FAULT_FILE)}, LocalFiles())
    assert caught.value.hint
    raise_start_fault({}, LocalFiles())


@pytest.mark.slow
def test_base_and_head_get_environments_of_their_own() -> None:
    """The real thing but for the gate's own environment: reader, index, sandbox, accounts."""
    if why_not(IsolationMode.UID):
        pytest.skip(why_not(IsolationMode.UID))
    built = {
        f"auditlib-{version}-py3-none-any.whl": wheel(
            "auditlib", version, {"auditlib/__init__.py": f"VERSION = {version!r}"}
        )
        for version in ("1.0", "1.1")
    }
    with tempfile.TemporaryDirectory() as folder, WheelIndex(built) as index:
        top = Path(folder)
        top.chmod(0o755)
        (top / "place").mkdir()
        project = Repository(top / "project")
        commits = []
        for version in ("1.0", "1.1"):
            digest = sha256_of(built[f"auditlib-{version}-py3-none-any.whl"])
            project.write(NAME, f"auditlib=={version} --hash=sha256:{digest}\n")
            commits.append(project.commit())
        given = _variables(project, top, commits[0], "pull_request")
        folders = [str(ROOT), sysconfig.get_paths()["purelib"]]
        program = (
            f"import sys; sys.path[:0] = {folders!r}; "
            "from gate.action.training_packages import main; main()"
        )
        words = (str(gate_python()), "-I", "-c", program, NAME, str(top / "place"))
        ended = subprocess.run(
            words,
            env={"PATH": os.defpath, "PIP_INDEX_URL": index.url(), **given},
            capture_output=True,
            check=False,
            text=True,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        for name, version in ((BASE, "1.0"), (HEAD, "1.1")):
            python = top / "place" / name / "python/bin/python"
            shown = (str(python), "-I", "-c", "import auditlib; print(auditlib.VERSION)")
            assert subprocess.check_output(shown, text=True) == f"{version}\n"
        assert "downloading 1 locked package" in ended.stdout
        # of no account that the next installer, or a training, may have
        assert {path.lstat().st_uid for path in (top / "place").rglob("*")} == {0}
