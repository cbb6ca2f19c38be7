"""A change that brings another package or image: each side trains in what its own commit asks for.

The packages are real wheels of two versions, imported from where each side's programs say.
"""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from each_row import each_row
from gate_bench import FILES, Bench, gate_call
from played_training import SCRIPT, WITH_PACKAGE, Project
from real_reader import kept

from gate.errors import GateError, SettingsError
from gate.evidence.lock_files import BroughtEnvironment
from gate.isolation.modes import ContainerSettings, Isolation, IsolationMode, TrainingContainer
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.adapters import Adapters
from gate.pipelines.call_setup import BASE_PROGRAMS, PROGRAMS, build_adapters
from gate.pipelines.case import Gated
from gate.pipelines.environments import brought_environment, refuse_image, training_environments
from gate.pipelines.gate import judging, run_only
from gate.settings.gate_settings import GateSettings
from gate.settings.load import parse_settings
from gate.settings.policy_change import dependency_files
from gate.system.console import QuietProgress
from gate.training.runs import Commit
from gate.verdict.verdict import Answer, Outcome

SETTINGS = """\
version: 1
train: {command: trainer train.py, max_steps: 3}
isolation: {mode: none}
"""
BASE_IMAGE, HEAD_IMAGE = (f"ghcr.io/team/train@sha256:{letter * 64}" for letter in "ab")


def _programs(folder: Path, version: str, scale: float) -> Path:
    """A wheel of the package, and a program that trains with it."""
    folder.mkdir()
    wheel = folder / f"auditlib-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("auditlib/__init__.py", f"VERSION, SCALE = {version!r}, {scale!r}\n")
    trainer = folder / "trainer"
    trainer.write_text(f'#!/bin/sh\nPYTHONPATH="{wheel}:$PYTHONPATH" exec python3 "$@"\n')
    trainer.chmod(0o755)
    return folder


class Upgrade(Bench):
    """A project with a baseline of version 1.0, and a change that asks for another version."""

    def __init__(self, place: Path) -> None:
        project = Project(place / "project")
        super().__init__(project, place / "out")
        project.write("train.py", WITH_PACKAGE)
        project.write("repro-gate.yml", SETTINGS)
        project.write("requirements.txt", "auditlib==1.0\n")
        project.commit()
        self.base_programs = self.head_programs = _programs(place / "base", "1.0", 1.0)
        self.base_is_here = True
        self.base = self.record()
        self.place = place

    def bump(self, scale: float) -> None:
        """The change: another version, which multiplies every loss."""
        self.head_programs = _programs(self.place / "head", "1.1", scale)
        self.project.write("requirements.txt", "auditlib==1.1\n")
        self.project.commit()

    def adapters(self) -> Adapters:
        variables = {**os.environ, PROGRAMS: str(self.head_programs)}
        if self.base_is_here:
            variables[BASE_PROGRAMS] = str(self.base_programs)
        built = build_adapters(FILES, self.project.path, QuietProgress(), StopSignals(), variables)
        return replace(built, answering=kept(built.answering))

    def judged(self) -> Gated:
        return gate_call(self.request(base=self.base), self.adapters())


@pytest.fixture
def upgrade(tmp_path: Path) -> Upgrade:
    return Upgrade(tmp_path)


def _base_runs(found: Gated) -> list[tuple[str, Commit]]:
    return [(run.label, run.environment) for run in found.verdict.runs if run.commit is Commit.BASE]


def test_a_bump_that_moves_the_numbers_fails_and_is_named(upgrade: Upgrade) -> None:
    upgrade.bump(scale=1.01)
    found = upgrade.judged()
    verdict = found.verdict
    assert (verdict.outcome, int(verdict.exit_code)) == (Outcome.DEPENDENCY_DRIFT, 1)
    assert verdict.brought.files == ("requirements.txt",)
    assert _base_runs(found) == [
        ("base-1", Commit.BASE),
        ("base-2", Commit.BASE),
        ("base-here", Commit.HEAD),
    ]
    assert verdict.answers.base_here is Answer.EQUAL
    assert found.proposed is not None


def test_a_bump_that_moves_nothing_passes(upgrade: Upgrade) -> None:
    upgrade.bump(scale=1.0)
    found = upgrade.judged()
    assert found.verdict.outcome is Outcome.REPRODUCED
    assert _base_runs(found) == []
    assert [change.part for change in found.verdict.baseline.environment] == ["packages"]  # type: ignore[union-attr] # there was one


def test_code_that_moves_the_numbers_beside_a_harmless_bump_is_named(upgrade: Upgrade) -> None:
    upgrade.bump(scale=1.0)
    upgrade.project.play(losses=["2.5", "2.25", "2.0"])  # type: ignore[attr-defined] # a Project
    verdict = upgrade.judged().verdict
    assert verdict.outcome is Outcome.CODE_DRIFT
    assert "which gives one result in both environments" in verdict.cause


def test_a_base_commit_that_does_not_start_with_the_new_package_leaves_both(
    upgrade: Upgrade,
) -> None:
    upgrade.bump(scale=1.01)
    (upgrade.head_programs / "auditlib-1.1-py3-none-any.whl").unlink()
    with zipfile.ZipFile(upgrade.head_programs / "auditlib-1.1-py3-none-any.whl", "w") as archive:
        archive.writestr("auditlib/__init__.py", "VERSION, FACTOR = '1.1', 1.01\n")
    upgrade.project.write("train.py", WITH_PACKAGE.replace("auditlib.SCALE", "auditlib.FACTOR"))
    upgrade.project.commit()
    verdict = upgrade.judged().verdict
    assert verdict.outcome is Outcome.DEPENDENCY_DRIFT
    assert "as may its code" in verdict.cause


def test_without_the_base_commits_packages_nothing_is_excused(upgrade: Upgrade) -> None:
    upgrade.bump(scale=1.01)
    upgrade.base_is_here = False
    found = upgrade.judged()
    assert (found.verdict.outcome, found.verdict.passes) == (Outcome.ENVIRONMENT_DRIFT, False)
    assert _base_runs(found) == [("base-1", Commit.HEAD), ("base-2", Commit.HEAD)]


def test_another_job_judges_the_same_runs_alike(upgrade: Upgrade, tmp_path: Path) -> None:
    upgrade.bump(scale=1.01)
    request = upgrade.request(base=upgrade.base)
    folder = run_only(request, upgrade.adapters())
    judge = judging(folder)
    imported = replace(
        upgrade.request(base=upgrade.base, commit="HEAD"),
        imported_runs=True,
        out=tmp_path / "judged",
    )
    found = judge(imported, upgrade.adapters(), None)
    assert found.verdict.outcome is Outcome.DEPENDENCY_DRIFT
    assert len(_base_runs(found)) == 3


def test_the_same_code_with_another_result_is_no_drift_of_the_code(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    data = tmp_path / "data.txt"
    data.write_text("1.0")
    project.write(
        "train.py",
        SCRIPT.replace(
            "float(text) for text", f'float(text) * float(open("{data}").read()) for text'
        ),
    )
    project.commit()
    bench.record()
    data.write_text("1.5")
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.ENVIRONMENT_DRIFT
    assert verdict.nothing_moved
    project.write("README.md", "another file")
    project.commit()
    assert bench.gate().verdict.outcome is Outcome.CODE_DRIFT


def _isolated(settings: GateSettings, _: tuple[Path, ...]) -> Isolation:
    """An engine that has every image."""
    container = TrainingContainer(
        image_id=str(settings.isolation.image), run="r", limits=ContainerSettings()
    )
    return Isolation(
        mode=IsolationMode.CONTAINER, credentials=None, reason="played", container=container
    )


def _settings(image: str, allowed: tuple[str, ...] = ()) -> GateSettings:
    text = f"version: 1\ntrain: {{command: a, max_steps: 1}}\nisolation: {{image: '{image}'}}\n"
    return parse_settings(f"{text}policy: {{images: {list(allowed)}}}\n".encode(), "x")


@pytest.mark.parametrize("pull_request", [True, False])
def test_each_side_trains_in_its_own_image(bench: Bench, *, pull_request: bool) -> None:
    brought = BroughtEnvironment(base_image=BASE_IMAGE, head_image=HEAD_IMAGE)
    decides = BASE_IMAGE if pull_request else HEAD_IMAGE
    request = replace(
        bench.request(),
        settings=_settings(decides, ("ghcr.io/team/*",)),
        pull_request=pull_request,
        environment_change=brought,
    )
    found = training_environments(request, _isolated, Path("/w"), {}, "")
    images = {commit: one.isolation.of_a_run.image for commit, one in found.items()}
    assert images == {Commit.HEAD: HEAD_IMAGE, Commit.BASE: BASE_IMAGE}


def test_an_image_that_the_base_does_not_allow_is_refused_before_it_is_fetched(
    bench: Bench,
) -> None:
    asked: list[str | None] = []

    def isolate(settings: GateSettings, folders: tuple[Path, ...]) -> Isolation:
        asked.append(settings.isolation.image)
        return _isolated(settings, folders)

    request = replace(
        bench.request(),
        settings=_settings(BASE_IMAGE, ("ghcr.io/other/*",)),
        pull_request=True,
        environment_change=BroughtEnvironment(base_image=BASE_IMAGE, head_image=HEAD_IMAGE),
    )
    with pytest.raises(SettingsError, match="of the base commit does not allow") as caught:
        training_environments(request, isolate, Path("/w"), {}, "")
    assert "Add a pattern such as `ghcr.io/team/train` to policy.images" in caught.value.hint
    assert asked == [BASE_IMAGE]


@pytest.mark.parametrize("pattern", ["ghcr.io/team/*", "ghcr.io/team/train", HEAD_IMAGE, "*"])
def test_patterns_fit_names_and_whole_digests(bench: Bench, pattern: str) -> None:
    request = replace(
        bench.request(),
        pull_request=True,
        settings=_settings(BASE_IMAGE, (pattern,)),
        environment_change=BroughtEnvironment(base_image=BASE_IMAGE, head_image=HEAD_IMAGE),
    )
    refuse_image(request)


def _with_image(image: str) -> str:
    return SETTINGS.replace("{mode: none}", f"{{mode: none, image: '{image}'}}")


@pytest.mark.parametrize("pull_request", [True, False])
def test_what_a_change_brings_is_read_from_both_commits(
    bench: Bench, project: Project, *, pull_request: bool
) -> None:
    project.write("repro-gate.yml", _with_image(BASE_IMAGE))
    base = project.commit()
    trusted = bench.request()
    project.write("docker/Dockerfile.gpu", "FROM x\n")
    project.write("train.py", "x = 1\n")
    project.write("repro-gate.yml", _with_image(HEAD_IMAGE))
    head = project.commit()
    request = bench.request(base=base)
    if pull_request:
        request = replace(trusted, base_commit=base, commit=head, pull_request=True)
    assert brought_environment(request, parse_settings, bench.adapters().git) == BroughtEnvironment(
        files=("docker/Dockerfile.gpu",), base_image=BASE_IMAGE, head_image=HEAD_IMAGE
    )


def test_what_the_base_branch_has_got_meanwhile_is_not_brought(
    bench: Bench, project: Project
) -> None:
    project.git("checkout", "-q", "-b", "topic")
    project.write("uv.lock", "one")
    head = project.commit()
    project.git("checkout", "-q", "-")
    project.write("requirements.txt", "numpy==2\n")
    project.write("repro-gate.yml", _with_image(BASE_IMAGE))
    base = project.commit()
    request = replace(bench.request(), base_commit=base, commit=head, pull_request=True)
    found = brought_environment(request, parse_settings, bench.adapters().git)
    assert found == BroughtEnvironment(files=("uv.lock",))


def test_a_lock_that_the_settings_name_is_brought_whatever_its_name(
    bench: Bench, project: Project
) -> None:
    project.write("repro-gate.yml", SETTINGS + "environment: {locks: [deps/frozen]}\n")
    base, trusted = project.commit(), bench.request()
    project.write("deps/frozen", "numpy==2.0 --hash=sha256:0\n")
    head = project.commit()
    request = replace(trusted, base_commit=base, commit=head, pull_request=True)
    found = brought_environment(request, parse_settings, bench.adapters().git)
    assert found == BroughtEnvironment(files=("deps/frozen",))


def test_settings_that_cannot_be_read_bring_nothing(bench: Bench, project: Project) -> None:
    base, trusted = project.commit(), bench.request()
    project.write("repro-gate.yml", "version: [")
    head = project.commit()
    request = replace(trusted, base_commit=base, commit=head, pull_request=True)
    found = brought_environment(request, parse_settings, bench.adapters().git)
    assert found == BroughtEnvironment()


@each_row(
    "path",
    ["requirements.txt", "requirements-gpu.txt", "a/uv.lock", "poetry.lock", "Pipfile.lock",
     "pyproject.toml", "environment.yml", "Dockerfile", ".github/workflows/ci.yml",
     "requirements/base.in", "conda-linux-64.lock", "setup.cfg"],
)  # fmt: skip
def test_files_that_declare_packages_are_known(path: str) -> None:
    assert dependency_files(("train.py", path, "README.md")) == (path,)


@pytest.mark.parametrize("name", ["nvidia-smi", "dvc", "git", "git-lfs"])
def test_the_gate_starts_no_program_that_the_change_brings(
    upgrade: Upgrade, tmp_path: Path, name: str
) -> None:
    started = tmp_path / "started"
    planted = upgrade.head_programs / name
    planted.write_text(f'#!/bin/sh\necho "$0 $*" >> {started}\nexit 1\n')
    planted.chmod(0o755)
    upgrade.project.write("data.dvc", "outs:\n- md5: 0\n  path: data\n")
    upgrade.project.write("repro-gate.yml", f"{SETTINGS}data: [{{dvc: data.dvc}}]\n")
    upgrade.project.commit()
    adapters = upgrade.adapters()
    # each is asked for here: where the machine has none of that name, none is found
    adapters.gpus()
    adapters.machine()
    with suppress(GateError):
        gate_call(upgrade.request(base=upgrade.base), adapters)
    assert not started.exists()
