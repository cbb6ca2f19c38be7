from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from gate.action.training_packages import FAULT_FILE, FAULT_VARIABLE
from gate.action.wheel_installer import (
    FILE_VARIABLES,
    INDEX_VARIABLES,
    INSTALLERS,
    PROXY_VARIABLES,
    index_files,
)
from gate.errors import SettingsError
from gate.isolation.account_choice import ACCOUNTS

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


def test_pip_gets_no_token_and_no_key(start: Any, tmp_path: Path) -> None:  # noqa: ANN401 - as above
    given = {
        "INPUT_TOKEN": "canary",
        "GITHUB_TOKEN": "canary",
        "ACTIONS_RUNTIME_TOKEN": "canary",
        # what has pip build, or run another program
        "PIP_NO_BINARY": "canary",
        "PIP_PYTHON": "canary",
        "https_proxy": "http://proxy:1",
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "GITHUB_WORKSPACE": str(tmp_path / "workspace"),
        "HOME": str(tmp_path / "home"),
    }
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.netrc").write_text("machine x login y password z")
    variables = start.pip_variables(given, tmp_path)
    assert "canary" not in variables.values()
    assert variables.pop("NETRC") == str(tmp_path / "home/.netrc")
    assert set(variables) == {"https_proxy", "PIP_INDEX_URL", "PATH", "HOME", "LC_ALL"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PIP_CONFIG_FILE", "{}/pip.conf"),
        ("PIP_CONFIG_FILE", "pip.conf"),
        ("PIP_FIND_LINKS", "/wheels {}/wheels"),
        ("PIP_INDEX_URL", "file://{}/simple"),
        ("SSL_CERT_FILE", "sub/../certificate.pem"),
    ],
)
def test_a_commit_does_not_tell_pip_what_to_do(
    start: Any,  # noqa: ANN401 - as above
    tmp_path: Path,
    name: str,
    value: str,
) -> None:
    (tmp_path / "pip.conf").touch()
    given = {name: value.format(tmp_path), "GITHUB_WORKSPACE": str(tmp_path)}
    with pytest.raises(start.StartError, match=f"{name} leads into the workspace"):
        start.pip_variables(given, tmp_path)
    with pytest.raises(SettingsError, match=f"{name} leads into the workspace"):
        index_files(given, tmp_path)


def test_the_gate_and_its_first_program_hand_pip_the_same_variables(start: Any) -> None:  # noqa: ANN401 - as above
    assert start.FOR_PIP == INDEX_VARIABLES
    assert start.FILES_FOR_PIP == FILE_VARIABLES
    assert start.PROXIES == PROXY_VARIABLES


def test_what_pip_says_cannot_be_a_workflow_command(start: Any, tmp_path: Path) -> None:  # noqa: ANN401 - as above
    lock = tmp_path / "r.txt"
    lock.write_text("::set-output name=verdict::reproduced ##[error]x\n")
    with pytest.raises(start.StartError) as caught:
        start.install(Path(sys.executable), lock, start.pip_variables({}, tmp_path))
    assert "::" not in str(caught.value)
    assert "##[" not in str(caught.value)


def _python(folder: Path, script: str) -> Path:
    """A program in the place of the gate's Python."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_what_installs_gets_neither_token_nor_key(
    start: Any,  # noqa: ANN401 - as above
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "PLACE", tmp_path)
    given = {
        "INPUT_TOKEN": "canary",
        "INPUT_SIGNING_KEY": "canary",
        "INPUT_SIGNING_KEY_PASSPHRASE": "canary",
        "GITHUB_TOKEN": "canary",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "canary",
        "VAULT_TOKEN": "canary",
        "AWS_SECRET_ACCESS_KEY": "canary",
        "MLFLOW_TRACKING_PASSWORD": "canary",
        "REPRO_GATE_REGISTRY_PASSWORD": "canary",
        "GITHUB_WORKSPACE": "/w",
        "PIP_INDEX_URL": "https://mirror.example/simple",
    }
    words = "-I -u -m gate.action.training_packages r.txt"
    made = tmp_path / "repro-gate-training/python/bin"
    script = f'test "$*" = "{words} {tmp_path}" && env > {tmp_path}/seen && mkdir -p {made}'
    found = start.install_for_training(_python(tmp_path, script), "r.txt", given)
    assert found == {"REPRO_GATE_PROGRAMS": str(made)}
    seen = (tmp_path / "seen").read_text()
    assert "canary" not in seen
    assert "PIP_INDEX_URL=https://mirror.example/simple" in seen


@pytest.mark.parametrize(("mode", "installs"), [("judge", False), ("gate", True), ("run", True)])
def test_who_judges_installs_nothing(
    start: Any,  # noqa: ANN401 - as above
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    *,
    installs: bool,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    words = 'case "$*" in *training_packages*) touch "$0.installed";; esac; env > "$0.env"'
    (tmp_path / "repro-gate/bin").mkdir(parents=True)
    python = _python(tmp_path / "repro-gate/bin", words)
    (tmp_path / "repro-gate/ready").touch()
    monkeypatch.setattr(start, "PLACE", tmp_path)
    given = {"INPUT_REQUIREMENTS": "r.txt", "INPUT_MODE": mode, "PIP_INDEX_URL": "https://u:p@x"}
    # the gate takes the place of this process
    child = os.fork()
    if not child:
        try:
            start.start({**given, "PIP_CONFIG_FILE": "/etc/pip.conf", "PATH": os.defpath})
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    assert (tmp_path / "repro-gate/bin/python.installed").exists() == installs
    seen = Path(f"{python}.env").read_text()
    assert "PIP_INDEX_URL" not in seen
    assert "PIP_CONFIG_FILE=/etc/pip.conf" in seen


def test_what_cannot_be_installed_is_left_to_the_gate_to_report(
    start: Any,  # noqa: ANN401 - as above
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "PLACE", tmp_path)
    fault = tmp_path / FAULT_FILE
    told = f"echo '{{}}' > {fault}; exit 3"
    found = start.install_for_training(_python(tmp_path, told), "r.txt", {})
    assert found == {FAULT_VARIABLE: str(fault)}
    fault.unlink()
    # ended without a word: killed, or cancelled
    with pytest.raises(SystemExit, match="4"):
        start.install_for_training(_python(tmp_path, "exit 4"), "r.txt", {})


def test_no_installer_is_an_account_that_trains() -> None:
    assert not {*INSTALLERS} & {*ACCOUNTS}
