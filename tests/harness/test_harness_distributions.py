"""What is installed, where it came from, and what this process imported, seen in real folders."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from gate.harness.lifecycle import environment_survey
from gate.harness.lifecycle import environment_survey as distributions
from gate.harness.output import Problems

VCS = {"vcs": "git", "commit_id": "a" * 40}
URL = "https://me:token@example.org/team/library.git"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages at the front of the path, whose modules are forgotten afterwards."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    known = set(sys.modules)
    # put back by the fixture's own end, so that no later test sees these modules
    monkeypatch.setattr(sys, "modules", sys.modules)
    yield folder
    for name in set(sys.modules) - known:
        del sys.modules[name]


def install(
    site: Path, name: str, *, files: Mapping[str, str], direct: object = None, version: str = "1.0"
) -> None:
    """As pip leaves it: the files, and beside them metadata with a list of them."""
    about = site / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if direct is not None:
        (about / "direct_url.json").write_text(json.dumps(direct))
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (about / "RECORD").write_text("".join(f"{path},sha256=x,1\n" for path in files))


def seen(tree: Path, name: str) -> distributions.Installed:
    (found,) = [one for one in distributions.survey(tree) if one.name == name]
    return found


def test_only_what_was_imported_is_told_so(site: Path) -> None:
    install(site, "Env-Used", files={"env_used/__init__.py": "", "env_used/more.py": ""})
    install(site, "env-tool", files={"env_tool.py": ""})
    import_module("env_used.more")
    assert seen(site, "Env-Used").imported
    assert not seen(site, "env-tool").imported


def test_a_part_of_a_shared_folder_belongs_to_who_installed_it(site: Path) -> None:
    install(site, "env-shared-one", files={"env_shared/one/__init__.py": ""})
    install(site, "env-shared-two", files={"env_shared/two/__init__.py": ""})
    import_module("env_shared.one")
    assert seen(site, "env-shared-one").imported
    assert not seen(site, "env-shared-two").imported


def test_of_two_with_one_name_only_the_first_can_be_imported(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = tmp_path / "behind" / "site-packages"
    behind.mkdir(parents=True)
    install(behind, "env_twice", files={"env_twice.py": ""}, version="0.9")
    monkeypatch.setattr(sys, "path", [*sys.path, str(behind)])
    install(site, "env-twice", files={"env_twice.py": ""}, version="1.1")
    assert seen(site, "env-twice").version == "1.1"
    assert "env_twice==0.9" not in distributions.distribution_lines()


def test_a_package_without_a_list_of_files_is_known_by_its_modules(site: Path) -> None:
    install(site, "env-old", files={"env_old.py": ""})
    (site / "env-old-1.0.dist-info" / "RECORD").unlink()
    assert not seen(site, "env-old").imported
    import_module("env_old")
    assert seen(site, "env-old").imported


@pytest.mark.parametrize(
    ("direct", "origin"),
    [
        (None, "index"),
        ({"url": URL, "vcs_info": VCS}, f"git {'a' * 40} of https://example.org/team/library.git"),
        ({"url": URL, "archive_info": {"hashes": {"sha256": "b"}}}, "archive sha256:b"),
        ({"url": URL, "archive_info": {"hash": "sha256=c"}}, "archive sha256:c"),
        ({"url": URL}, "archive https://example.org/team/library.git"),
        ({"url": "file:///nowhere/library", "dir_info": {}}, "folder"),
        ("no table", "index"),
    ],
)
def test_an_origin_names_bytes_and_no_secret(site: Path, direct: object, origin: str) -> None:
    install(site, "env-origin", files={"env_origin.py": ""}, direct=direct)
    assert seen(site, "env-origin").origin == origin


def editable(site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "env_editable").mkdir(parents=True)
    (folder / "env_editable" / "__init__.py").write_text("RATE = 0.1\n")
    (folder / "pyproject.toml").write_text('[project]\nname = "Env.Editable"\n')
    direct = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    # setuptools leaves a finder that a .pth file loads into every Python
    install(site, "env-editable", files={"__editable___env_finder.py": ""}, direct=direct)
    import_module("__editable___env_finder")
    monkeypatch.syspath_prepend(folder)


def test_editable_code_beside_the_project_is_known_by_its_bytes(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "training"
    elsewhere.mkdir()
    editable(site, tmp_path / "library", monkeypatch)
    assert seen(elsewhere, "env-editable").origin == "folder"
    import_module("env_editable")
    before = seen(elsewhere, "env-editable")
    assert before.imported
    assert before.origin.startswith("editable sha256:")
    (tmp_path / "library" / "env_editable" / "__init__.py").write_text("RATE = 0.2\n")
    assert seen(elsewhere, "env-editable").origin != before.origin


def test_the_project_under_test_is_no_environment_wherever_it_was_installed_from(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editable(site, tmp_path / "checkout" / "library", monkeypatch)
    import_module("env_editable")
    # the commit's copy, in which the training starts in a folder of its own
    copy = tmp_path / "work" / "tree"
    (copy / "library").mkdir(parents=True)
    (copy / "library" / "pyproject.toml").write_text("[project]\nname = 'env_editable'\n")
    assert seen(copy, "env-editable").origin == "project"


def test_a_folder_that_a_broken_installation_left_is_passed_over(site: Path) -> None:
    (site / "env_broken-1.0.dist-info").mkdir()
    (site / "~nv-1.0.dist-info").mkdir()
    problems = Problems()
    assert environment_survey.packages(problems).packages
    assert environment_survey.parts(problems)["packages"] != "none"
    assert problems.sentences == []


def test_what_ran_here_is_found_in_the_real_packages() -> None:
    found = environment_survey.packages(Problems())
    assert {"numpy", "torch"} <= set(found.imported)
    assert set(found.imported) <= {line.partition("==")[0] for line in found.packages}
    # setuptools leaves a hook in every Python: that is no import of anybody's
    assert "setuptools" not in found.imported or "setuptools" in sys.modules
