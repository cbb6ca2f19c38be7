"""Which settings file a call takes, and what it says where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_workshop import Repository

from gate.errors import ExitCode, SettingsError
from gate.pipelines.settings_file import (
    MAX_SETTINGS_BYTES,
    find_config,
    nearest_settings,
    settings_bytes,
)
from gate.system.files.files import LocalFiles

NONE = "no repro-gate.yml in this folder or in one above it, up to the repository's root"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "r")


def _refusal(repository: Repository, below: str = "", config: str = "") -> SettingsError:
    start = repository.path / below
    start.mkdir(parents=True, exist_ok=True)
    with pytest.raises(SettingsError) as caught:
        find_config(config, start, repository.path)
    return caught.value


def test_the_nearest_file_from_here_up_to_the_root_is_taken(repository: Repository) -> None:
    for name in ("repro-gate.yml", "nlp/repro-gate.yml", "nlp/src/deep/x.py"):
        repository.write(name, "x")
    top = repository.path
    for start, found in (("nlp/src/deep", "nlp"), ("nlp", "nlp"), ("", "")):
        assert find_config("", top / start, top) == top / found / "repro-gate.yml"
        assert nearest_settings(top / start) == top / found / "repro-gate.yml"


def test_a_file_above_the_repository_is_nobodys(repository: Repository) -> None:
    (repository.path.parent / "repro-gate.yml").write_text("x")
    assert _refusal(repository, "sub").message == NONE
    assert nearest_settings(repository.path) is None


def test_where_there_is_none_the_others_of_the_repository_are_named(repository: Repository) -> None:
    repository.write("b/my gate/repro-gate.yml", "x")
    repository.write("a/repro-gate.yml", "x")
    fault = _refusal(repository, "c")
    assert fault.message == NONE
    assert fault.hint == (
        "This repository has others. Name one: "
        "--config ../a/repro-gate.yml, or '../b/my gate/repro-gate.yml'"
    )


def test_what_has_the_name_and_is_no_file_is_said(repository: Repository) -> None:
    repository.write("repro-gate.yml/x", "x")
    assert str(_refusal(repository)) == (
        "repro-gate.yml is a folder\nhint: Rename it: the settings file needs this name."
    )
    (repository.path / "sub").mkdir()
    (repository.path / "sub" / "repro-gate.yml").symlink_to("away.yml")
    assert str(_refusal(repository, "sub")) == (
        "repro-gate.yml is a link to away.yml, which is not there\n"
        "hint: Put the settings file itself there."
    )


def test_a_file_with_the_other_suffix_is_said(repository: Repository) -> None:
    repository.write("repro-gate.yaml", "x")
    assert str(_refusal(repository)) == (
        "no repro-gate.yml here, but repro-gate.yaml\n"
        "hint: Rename it: git mv repro-gate.yaml repro-gate.yml. "
        "Or name it: --config repro-gate.yaml."
    )


def test_a_folder_given_as_the_file_is_called_one(repository: Repository) -> None:
    repository.write("my gate/repro-gate.yml", "x")
    repository.write("other/x", "x")
    assert str(_refusal(repository, config="my gate")) == (
        "my gate is a folder\nhint: Name the file in it: --config 'my gate/repro-gate.yml'"
    )
    assert str(_refusal(repository, config="other")) == (
        "other is a folder\nhint: Name a file; `repro-gate init` writes a minimal one at the root."
    )


def test_a_settings_file_that_cannot_be_read_belongs_to_the_call(repository: Repository) -> None:
    path = repository.write("repro-gate.yml", b"#" * (MAX_SETTINGS_BYTES + 1))
    with pytest.raises(SettingsError, match="is larger than 262,144 bytes") as caught:
        settings_bytes(path, LocalFiles())
    assert caught.value.exit_code == ExitCode.USAGE
