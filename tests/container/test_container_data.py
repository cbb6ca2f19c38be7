"""Declared data in a training's own container: mounted from the machine, at one path, read-only."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_bench import Bench
from played_training import SCRIPT, Project

from gate.errors import RunError
from gate.isolation.modes import IsolationMode
from gate.verdict.verdict import Outcome

pytestmark = pytest.mark.docker
READS = SCRIPT.replace(
    'losses = [float(text) for text in play["losses"]]\n',
    'source = pathlib.Path(os.environ["REPRO_GATE_DATA"]) / "mini"\n'
    'losses = [float(text) for text in (source / "losses.txt").read_text().split()]\n'
    "for path in (source / 'losses.txt', source / 'new'):\n"
    "    try: path.open('a').close()\n"
    "    except OSError as error: print('refused:', error.strerror)\n",
)
UNDECLARED = READS + "print(open('/srv/nowhere/x.npy'))\n"


class InContainer(Bench):
    """A project whose training runs in a container of its own, with a data set of the machine."""

    def __init__(self, place: Path, image: str) -> None:
        super().__init__(Project(place / "project"), place / "out")
        self.mini = place / "private" / "mini"
        self.mini.mkdir(parents=True)
        (self.mini / "losses.txt").write_text("2.5 2.25 2.125")
        # the engine mounts it all the same: the training never passes this folder
        self.mini.parent.chmod(0o711)
        (self.mini / "losses.txt").chmod(0o666)
        self.mini.chmod(0o777)
        self.project.write("train.py", READS)
        self.project.write(
            "repro-gate.yml",
            "version: 1\ntrain: {command: python3 train.py, max_steps: 3, device: cpu}\n"
            f"isolation: {{mode: container, image: '{image}'}}\n"
            f"data:\n  - {{path: {self.mini}, as: mini}}\n",
        )
        self.project.commit()


@pytest.fixture
def bench(open_folder: Path, base_image: str) -> InContainer:
    return InContainer(open_folder, base_image)


def test_a_data_set_is_mounted_read_only_and_judged(bench: InContainer) -> None:
    bench.record()
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.REPRODUCED
    assert verdict.isolation.mode is IsolationMode.CONTAINER
    output = (bench.out / "evidence" / "strict-1" / "output.txt").read_text()
    assert output.count("refused: Read-only file system") == 2
    (bench.mini / "losses.txt").write_text("2.5 2.25 2.0")
    verdict = bench.gate().verdict
    assert verdict.outcome is Outcome.DATA_DRIFT
    assert "mini, 1 of 1 file (first: losses.txt)" in verdict.cause


def test_a_path_that_is_not_declared_is_told_its_entry(bench: InContainer) -> None:
    bench.project.write("train.py", UNDECLARED)
    bench.project.commit()
    with pytest.raises(RunError) as caught:
        bench.gate()
    assert "There is no /srv/nowhere/x.npy in the container" in caught.value.hint
    assert "data: [{path: /srv/nowhere/x.npy, as: x.npy}]" in caught.value.hint
