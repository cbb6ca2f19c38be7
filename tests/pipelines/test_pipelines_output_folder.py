"""A folder that the gate did not make keeps what is in it, and gets nothing of the gate's."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_bench import Bench
from played_training import Project

from gate.errors import SettingsError
from gate.pipelines.snapshots import claim_out
from gate.system.files.files import LocalFiles


def refused(out: Path) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        claim_out(out, LocalFiles())
    return caught.value


def test_whatever_a_call_writes_is_left_alone_in_a_folder_of_somebody(
    bench: Bench, tmp_path: Path
) -> None:
    bench.gate()
    for name in (path.name for path in bench.out.iterdir() if not path.name.startswith(".")):
        mine = tmp_path / "folders" / name / name / "mine"
        mine.mkdir(parents=True)
        fault = refused(mine.parents[1])
        assert fault.message.endswith(f"contains {name}, and the gate did not make this folder")
        assert mine.is_dir()


def test_a_folder_with_anything_else_in_it_gets_no_mark(bench: Bench, project: Project) -> None:
    project.write("docs/guide.md", "mine\n")
    project.commit()
    bench.out = project.path / "docs"
    with pytest.raises(SettingsError) as caught:
        bench.gate()
    assert "contains guide.md, and the gate did not make this folder" in caught.value.message
    assert caught.value.hint.startswith("Name a new folder, for example demo-out")
    assert [path.name for path in bench.out.iterdir()] == ["guide.md"]


def test_an_empty_folder_becomes_the_gates_and_stays_it(tmp_path: Path) -> None:
    for _ in range(2):
        claim_out(tmp_path, LocalFiles())
        (tmp_path / "verdict.json").touch()
    assert {".gitignore", ".repro-gate-out"} < {path.name for path in tmp_path.iterdir()}


def test_a_call_that_was_stopped_while_it_took_the_folder_blocks_no_other(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".gitignore").write_text("*\n")
    claim_out(tmp_path, LocalFiles())
    assert (tmp_path / ".repro-gate-out").exists()


def test_a_link_to_a_folder_of_somebody_is_refused_as_that_folder_is(tmp_path: Path) -> None:
    (tmp_path / "mine" / "code").mkdir(parents=True)
    (tmp_path / "link").symlink_to("mine")
    assert "contains code, and" in refused(tmp_path / "link").message


@pytest.mark.parametrize("name", [".git", ".git/out"])
def test_gits_own_folder_is_no_output_folder(project: Project, name: str) -> None:
    fault = refused(project.path / name)
    assert fault.message.endswith(f"{name} is in the .git folder of a repository")
    assert fault.hint == "Name a separate folder, for example demo-out."
