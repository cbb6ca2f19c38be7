"""`make demo` with each example, in an environment that has one more package than ours.

A newcomer's environment is never the one that the committed baselines were recorded in, so what the
README promises of each example must not hang on that.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

GIT = shutil.which("git") or "git"
ROOT = Path(__file__).resolve().parents[2]
EXPECTED = {
    "digits": (0, ("reproduced", "within-tolerance")),
    "chargpt": (0, ("reproduced", "within-tolerance")),
    "diverges": (1, ("nondeterministic",)),
    "drifts": (1, ("code-drift",)),
    "declared": (0, ("reproduced", "within-tolerance")),
    "resumes": (0, ("reproduced", "within-tolerance")),
}
pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with all our packages and one of its own."""
    made = tmp_path_factory.mktemp("elsewhere")
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", str(made)), check=True)
    (packages,) = made.glob("lib/python*/site-packages")
    ours = sysconfig.get_paths()["purelib"]
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    extra = packages / "one_more-1.0.dist-info"
    extra.mkdir()
    (extra / "METADATA").write_text("Metadata-Version: 2.1\nName: one-more\nVersion: 1.0\n")
    program = made / "bin" / "repro-gate"
    program.write_text(f"#!{made}/bin/python\nfrom gate.cli import main\n\nmain()\n")
    program.chmod(0o755)
    return made / "bin"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a newcomer has: a clone, with what is being worked on committed in it."""
    made = tmp_path_factory.mktemp("clone") / "repro-gate"
    listed = subprocess.run(
        (GIT, "ls-files", "-z", "-co", "--exclude-standard"),
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, made / name)
    git = (GIT, "-c", "user.name=test", "-c", "user.email=test@invalid")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "all")):
        subprocess.run((*git, *words), cwd=made, check=True)
    return made


@pytest.mark.parametrize("example", EXPECTED)
def test_each_example_ends_as_the_readme_says(
    elsewhere: Path, clone: Path, tmp_path: Path, example: str
) -> None:
    ended = subprocess.run(
        (str(clone / "scripts" / "demo.sh"), example, str(tmp_path / "out")),
        env={**os.environ, "PATH": f"{elsewhere}:{os.environ['PATH']}", "PYTHONPATH": str(clone)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    code, outcomes = EXPECTED[example]
    assert (ended.returncode, verdict["outcome"] in outcomes) == (code, True), ended.stdout
    baseline = verdict["baseline"] or {"environment": (), "packages_aside": ()}
    named = [words for change in baseline["environment"] for words in change["details"]]
    # no training imports it, so it moves nothing and is told aside
    assert not any("one-more" in words for words in named)
    assert example == "diverges" or "one-more 1.0 added" in baseline["packages_aside"]
