"""Lock files of a commit through a whole gate: found, named, spoilt, too large, links."""

from __future__ import annotations

import os

import pytest
from gate_bench import Bench
from played_training import SETTINGS, Project

from gate.errors import SettingsError
from gate.evidence.lock_files import MAX_LOCK_BYTES

LOCK = f"numpy==2.0 --hash=sha256:{'a' * 64}\n"


def findings_of(bench: Bench, **options: object) -> dict[str, str]:
    verdict = bench.gate(**options).verdict
    return {finding.code: finding.message for finding in verdict.findings}


def name_locks(project: Project, *names: str) -> None:
    project.write("repro-gate.yml", f"{SETTINGS}environment:\n  locks: [{', '.join(names)}]\n")
    project.commit()


def test_locks_beside_the_settings_are_found_and_what_is_brought_is_told(
    bench: Bench, project: Project
) -> None:
    project.write("requirements.txt", LOCK)
    project.write("requirements-dev.txt", "pytest>=8\n")
    base = project.commit()
    project.write("requirements.txt", LOCK.replace("2.0", "2.1"))
    project.commit()
    found = bench.gate(base=base)
    (lock,) = found.evidence.locks
    assert (lock.path, lock.packages[0].versions) == ("requirements.txt", ("2.1",))
    codes = {finding.code: finding.message for finding in found.verdict.findings}
    assert codes["lock-changed"] == "requirements.txt changed: numpy 2.0 → 2.1"


def test_a_lock_that_was_only_found_and_cannot_be_read_is_a_finding(
    bench: Bench, project: Project
) -> None:
    project.write("uv.lock", "[[package]]\nversion = '1'\n")
    (project.path / "poetry.lock").symlink_to("uv.lock")
    project.commit()
    bench.record()
    verdict = bench.gate().verdict
    told = [finding.message for finding in verdict.findings if finding.code == "lock-unreadable"]
    assert [text.partition(":")[0] for text in told] == ["poetry.lock", "uv.lock"]
    assert "link" in told[0]
    assert told[1] == "uv.lock: a package has no name"
    assert verdict.passes


def test_the_locks_that_the_settings_name_have_to_be_there(bench: Bench, project: Project) -> None:
    name_locks(project, "locks/train.txt")
    with pytest.raises(SettingsError, match=r"locks: locks/train\.txt: is not in the commit"):
        bench.gate()


def test_a_lock_that_is_too_large_is_named_with_the_limit(bench: Bench, project: Project) -> None:
    name_locks(project, "uv.lock")
    with (project.path / "uv.lock").open("wb") as file:
        os.truncate(file.fileno(), 50 * 1024**2)
    project.commit()
    with pytest.raises(SettingsError, match=r"environment\.locks: uv\.lock: is larger") as raised:
        bench.gate()
    assert raised.value.message.endswith(f"is larger than {MAX_LOCK_BYTES:,} bytes")
