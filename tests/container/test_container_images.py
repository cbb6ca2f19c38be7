"""A change that brings another image: base and head each train in their own, in a real engine."""

from __future__ import annotations

import importlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gate_bench import Bench, gate_call
from played_training import WITH_PACKAGE, Project

from gate.errors import SettingsError
from gate.isolation.engine import engine_address
from gate.training.runs import Commit
from gate.verdict.verdict import Answer, Outcome

pytestmark = pytest.mark.docker
WHERE = "import site; print(site.getsitepackages()[0])"


@pytest.fixture(scope="module")
def image_with(base_image: str) -> Iterator[Callable[[str, float], str]]:
    """Builds an image with a version of a package that multiplies every loss."""
    # docker-py has no types, and is an extra
    client = importlib.import_module("docker").DockerClient(base_url=engine_address(os.environ))
    where = client.containers.run(base_image, ("python3", "-c", WHERE), remove=True)
    # built again it is the same image
    built: set[str] = set()

    def build(version: str, scale: float) -> str:
        text = f"VERSION, SCALE = {version!r}, {scale!r}\n"
        recipe = f"FROM {base_image}\nCOPY auditlib.py {where.decode().strip()}/\n"
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w") as archive:
            for name, content in (("auditlib.py", text), ("Dockerfile", recipe)):
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o644
                archive.addfile(member, io.BytesIO(content.encode()))
        context.seek(0)
        image, _ = client.images.build(fileobj=context, custom_context=True, rm=True)
        built.add(str(image.id))
        return str(image.id)

    yield build
    for image in built:
        client.images.remove(image, force=True)
    client.close()


class Images(Bench):
    """A project that trains in an image, with a baseline of it."""

    def __init__(self, place: Path, image: str) -> None:
        project = Project(place / "project")
        super().__init__(project, place / "out")
        project.write("train.py", WITH_PACKAGE)
        self.ask_for(image)
        self.base = self.record()

    def ask_for(self, image: str) -> str:
        """Let the settings name another image."""
        self.project.write(
            "repro-gate.yml",
            "version: 1\ntrain: {command: python3 train.py, max_steps: 3, device: cpu}\n"
            f"isolation: {{mode: container, image: '{image}'}}\n",
        )
        return self.project.commit()


def test_a_new_image_that_moves_the_numbers_is_dependency_drift(
    image_with: Callable[[str, float], str], open_folder: Path
) -> None:
    old, new = image_with("1.0", 1.0), image_with("1.1", 1.01)
    bench = Images(open_folder, old)
    bench.ask_for(new)
    verdict = gate_call(bench.request(base=bench.base), bench.adapters()).verdict
    assert verdict.outcome is Outcome.DEPENDENCY_DRIFT
    assert verdict.answers.base_here is Answer.EQUAL
    images = {(run.commit, run.environment): run.isolation.image for run in verdict.runs}
    assert images == {
        (Commit.HEAD, Commit.HEAD): new,
        (Commit.BASE, Commit.BASE): old,
        (Commit.BASE, Commit.HEAD): new,
    }


def test_a_new_image_that_moves_nothing_passes(
    image_with: Callable[[str, float], str], open_folder: Path
) -> None:
    bench = Images(open_folder, image_with("1.0", 1.0))
    bench.ask_for(image_with("1.2", 1.0))
    verdict = gate_call(bench.request(base=bench.base), bench.adapters()).verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.REPRODUCED, True)
    assert [change.part for change in verdict.baseline.environment] == ["packages"]  # type: ignore[union-attr] # there was one


def test_a_pull_request_may_not_bring_any_image(
    image_with: Callable[[str, float], str], open_folder: Path
) -> None:
    old, new = image_with("1.0", 1.0), image_with("1.3", 1.01)
    bench = Images(open_folder, old)
    trusted = bench.request()
    head = bench.ask_for(new)
    asked = bench.request(base=bench.base, commit=head)
    request = replace(asked, settings=trusted.settings, pull_request=True)
    with pytest.raises(SettingsError, match="of the base commit does not allow"):
        gate_call(request, bench.adapters())
    policy = trusted.settings.policy.model_copy(update={"images": (new,)})
    allowed = trusted.settings.model_copy(update={"policy": policy})
    verdict = gate_call(replace(request, settings=allowed), bench.adapters()).verdict
    assert verdict.outcome is Outcome.DEPENDENCY_DRIFT
